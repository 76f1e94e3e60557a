"""The consumer on the older versions of Spark that its package admits: those of Google's managed services.

`make build/spark/.installed` makes their environments. Each run of a version starts Spark three times.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from deploy.local.platform.emulators import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

ENVIRONMENTS: Final = ROOT / "build" / "spark"
VERSIONS = sorted(file.stem.removeprefix("spark-") for file in (ROOT / "requirements").glob("spark-*.txt"))
assert len(VERSIONS) == 3
TESTS = ("tests/exhaustive/test_submitted.py",)


def printed(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


def python_of(environment: Path) -> Path:
    python = environment / "bin" / "python"
    assert python.is_file(), f"{environment} is not there: make build/spark/.installed"
    return python


def run_tests(python: Path, variables: Mapping[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [str(python), "-m", "pytest", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env={**environment, **variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    assert " skipped" not in ended.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_the_consumer_works_on_an_older_spark(version: str) -> None:
    python = python_of(ENVIRONMENTS / version)
    assert printed([python, "-c", "import pyspark; print(pyspark.__version__)"]).strip() == version
    run_tests(python, {})


def test_the_consumer_works_on_the_java_and_the_python_of_googles_serverless_spark() -> None:
    environment = ENVIRONMENTS / "managed"
    python, java_home = python_of(environment), environment / "java"
    versions = "import platform, pyspark; print(pyspark.__version__, *platform.python_version_tuple()[:2])"
    assert printed([python, "-c", versions]).split() == ["4.0.1", "3", "12"]
    assert 'version "21.' in printed([java_home / "bin" / "java", "-version"])
    run_tests(python, {"JAVA_HOME": str(java_home)})
