"""Starts of Spark are counted over all workers, and a run of whole folders fails on too many."""

import os
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

import pyspark
import pytest

from deploy.local.platform.services import child_environment
from tests.spark_starts import LIMIT, SparkStarts

ROOT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent
CONFTEST = """
from tests.schedule import Schedule

def pytest_addoption(parser):
    parser.addoption("--write-costs", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(Schedule(config))
"""
STARTING = f"""
import subprocess
import pytest

@pytest.mark.parametrize("number", range({LIMIT + 1}))
def test_that_starts_spark(number):
    subprocess.run(["java", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"], check=True)
"""


def with_java(home: Path, environ: MutableMapping[str, str], by: str = "PATH") -> None:
    """Put a `java` into an environment that does nothing."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    environ.pop("JAVA_HOME", None)
    if by == "PATH":
        environ["PATH"] = f"{java.parent}{os.pathsep}{environ['PATH']}"
    else:
        environ["JAVA_HOME"] = str(home)


@pytest.mark.parametrize("by", ["PATH", "JAVA_HOME"])
def test_what_sparks_own_script_starts_is_counted_once_wherever_java_is_found(tmp_path: Path, by: str) -> None:
    environ = child_environment(os.environ)
    with_java(tmp_path, environ, by)
    starts = SparkStarts(environ)
    try:
        subprocess.run([SPARK / "bin" / "spark-submit", "x"], env=environ | {"SPARK_HOME": str(SPARK)}, check=False)
        assert starts.new() == 1
        java = Path(environ["JAVA_HOME"], "bin", "java") if by == "JAVA_HOME" else "java"
        subprocess.run([java, "-version"], env=environ, check=True)
        assert starts.new() == 0
    finally:
        starts.close()


def test_a_run_of_a_folder_fails_on_one_start_more_than_the_limit_and_names_the_tests(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_starting.py").write_text(STARTING)
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with_java(tmp_path / "java", environ)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-c", os.devnull, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    whole = run("--numprocesses", "2", str(tmp_path))
    part = run(str(tmp_path / "test_starting.py"))

    assert (whole.returncode, part.returncode) == (1, 0), whole.stdout + part.stdout
    for ended in (whole, part):
        assert f"{LIMIT + 1} passed" in ended.stdout
        assert f"{LIMIT + 1} Spark starts (limit {LIMIT})" in ended.stdout
        assert "test_starting.py::test_that_starts_spark[0]: 1 Spark starts" in ended.stdout
