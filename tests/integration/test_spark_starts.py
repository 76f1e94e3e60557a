"""Starts of Spark are counted."""

import os
import subprocess
from collections.abc import MutableMapping
from pathlib import Path

import pyspark
import pytest

from deploy.local.platform.services import child_environment
from tests.spark_starts import SparkStarts

SPARK = Path(pyspark.__file__).parent


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
