"""An upgrade and the way back, under load: two versions of the services on the same state, the consumer on Spark.

The other version is the last release before this commit. Before there is one, it is `BEFORE_ANY_RELEASE`.
VERSION_BEFORE names another commit or tag to try. Its code comes out of the history, and runs on this one's packages.
"""

import os
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import DEAD_LETTER
from shared.runtime.service import MISCONFIGURED
from tests.e2e.load import Load
from tests.exhaustive.deployment import ALL, READERS, Deployment, stored
from tests.worlds.consumer import ON_SPARK

pytestmark = pytest.mark.timeout(1_800)

BEFORE_ANY_RELEASE: Final = "48facc68"


def version_before() -> str:
    """Return the last release that this commit is not; before there is one, a commit."""
    described = git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^")
    return os.environ.get("VERSION_BEFORE") or described.stdout.decode().strip() or BEFORE_ANY_RELEASE


def git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run git in this repository."""
    return subprocess.run(["git", "-C", ROOT, *arguments], check=False, capture_output=True, timeout=60)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Return a directory with the code of the version before."""
    version, archive, code = version_before(), tmp_path / "before.tar", tmp_path / "before"
    packed = git("archive", f"--output={archive}", version)
    if packed.returncode:
        pytest.fail(
            f"the code of {version} is not in this repository's history ({packed.stderr.decode().strip()}): "
            "run `git fetch --tags --unshallow`, or the test in a clone with its history"
        )
    with tarfile.open(archive) as packed_code:
        packed_code.extractall(code, filter="data")
    return code


@pytest.fixture
def consumer_module() -> str:
    """Return the consumer on Spark, whose checkpoint one version takes over from the other."""
    return ON_SPARK


def test_an_upgrade_and_the_way_back_under_load_lose_nothing(before: Path, deployment: Deployment) -> None:
    load, older = Load(deployment.rig, deployment.source), {"PYTHONPATH": str(before)}
    deployment.start(*ALL, **older)
    with load.running():
        deployment.wait_until_it_flows()
        backup = backed_up(deployment.store)
        deployment.stop("dead_letter")
        deployment.start("dead_letter")
        deployment.replace("cdc_consumer")
        deployment.join(*READERS)
    deployment.wait_until_equal(load, load.poison)

    with load.running():
        deployment.join(*READERS, **older)
        deployment.replace("cdc_consumer", **older)
    deployment.wait_until_equal(load, load.poison)
    deployment.stop("dead_letter")
    start_older_store(deployment, older, backup)
    kept, published = stored(deployment.store), load.poison
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, kept + load.poison - published)
    shown = deployment.run(DEAD_LETTER, "groups", code=before)
    assert shown.returncode == 0, shown.stderr


def backed_up(store: Path) -> Path:
    """Copy the dead-letter store while its service runs, as the documentation says."""
    copy = store.with_suffix(".before")
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def start_older_store(deployment: Deployment, older: Mapping[str, str], backup: Path) -> None:
    """Start the older dead-letter service; on the backup if it refuses the newer store, which stays as it is."""
    service = deployment.launch("dead_letter", **older)
    service.process.expected_to_end = True
    deployment.wait(lambda: service.ready or service.process.exit_code is not None, "the older service to start")
    deployment.running["dead_letter"] = service
    if service.process.exit_code is None:
        service.process.expected_to_end = False
        return
    assert service.process.exit_code == MISCONFIGURED, service.process.obituary()
    kept = stored(deployment.store)
    newer = deployment.store.rename(deployment.store.with_suffix(".newer"))
    shutil.copy(backup, deployment.store)
    service.process.end()
    deployment.start("dead_letter", **older)
    assert stored(newer) == kept
    shown = deployment.run(DEAD_LETTER, "groups", DATABASE=f"sqlite:///{newer}")
    assert shown.returncode == 0, shown.stderr
