"""The archive of Spark's classes, as Java takes it: one that does not fit is ignored, without a word."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.platform.emulators import find_java
from deploy.local.platform.services import child_environment
from services.cdc_consumer.adapters.spark.spark_session import JAVA_OPTIONS, class_archive, spark_settings

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.integration


def java_options() -> list[str]:
    return [one for one in shlex.split(spark_settings("local[2]", "1g", 2)[JAVA_OPTIONS]) if one.startswith("-X")]


def test_an_archive_that_is_none_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a spark"
    home.mkdir()
    monkeypatch.setenv("SPARK_HOME", str(home))
    without = java_options()
    class_archive().write_bytes(b"no archive")
    options = java_options()
    assert options[: len(without)] == without
    assert f"-XX:SharedArchiveFile={home}/{class_archive().name}" in options

    for given in (without, options):
        ended = subprocess.run(
            [find_java(os.environ), *given, "-version"], capture_output=True, text=True, check=True, timeout=60
        )
        assert ended.stdout == ""
        assert "cds" not in ended.stderr


def test_without_java_no_archive_is_made_and_the_reason_is_printed(tmp_path: Path) -> None:
    ended = make_archive(tmp_path, JAVA_HOME=str(tmp_path / "nowhere"))

    assert "none was found in JAVA_HOME" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_older_archive_is_not_used_to_make_another_and_stays_where_java_ends(tmp_path: Path) -> None:
    (submit := tmp_path / "bin" / "spark-submit").parent.mkdir()
    submit.write_text('#!/bin/sh\necho "$@" > "$0.arguments"\nexit 1\n')
    submit.chmod(0o755)
    archive = tmp_path / class_archive().name
    archive.write_bytes(b"older")
    ended = make_archive(tmp_path)

    arguments = Path(f"{submit}.arguments").read_text()
    assert "-XX:ArchiveClassesAtExit" in arguments
    assert "-XX:SharedArchiveFile" not in arguments
    assert "Java ended with exit code 1" in ended.stderr
    assert archive.read_bytes() == b"older"


def make_archive(spark_home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command, which never fails: without an archive Spark starts all the same."""
    environment = {**child_environment(os.environ), "PYTHONPATH": str(ROOT), "SPARK_HOME": str(spark_home), **variables}
    command = [sys.executable, "-m", "services.cdc_consumer.wiring.class_archive"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "no archive of Spark's classes" in ended.stderr
    return ended
