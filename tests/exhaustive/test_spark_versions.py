"""The consumer on the older versions of Spark that its package admits: those of Google's managed services.

`make build/spark/.installed` makes their environments. Each run of a version starts Spark three times.
"""

import os
import subprocess

import pytest

from deploy.local.platform.emulators import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

VERSIONS = sorted(file.stem.removeprefix("spark-") for file in (ROOT / "requirements").glob("spark-*.txt"))
assert len(VERSIONS) == 3
TESTS = ("tests/exhaustive/test_submitted.py",)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_consumer_works_on_an_older_spark(version: str) -> None:
    python = ROOT / "build" / "spark" / version / "bin" / "python"
    assert python.is_file(), f"no environment with PySpark {version}: make build/spark/.installed"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == version

    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    ended = subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    assert " skipped" not in ended.stdout
