"""What a container of the consumer's image starts: the consumer, or what Spark on Kubernetes starts in its pods."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "services" / "cdc_consumer" / "entrypoint.sh"
JARS = Path(pyspark.__file__).parent / "jars"
ECHO = """#!/bin/sh
for word in "$@"; do printf "%s\\n" "$word"; done
printenv PYSPARK_SUBMIT_ARGS SPARK_MASTER SPARK_DRIVER_MEMORY
"""
MAIN = "local:///app/services/cdc_consumer/__main__.py"
PROPERTIES = r"""#Java properties built from Kubernetes config map
spark.kubernetes.driverEnv.spark.master=no
spark.master=k8s\://https\://kubernetes.default.svc\:443
spark.driver.memoryOverhead=2g
spark.driver.memory=3g
"""
OF_AN_EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "consumer-exec-3",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_APPLICATION_ID": "spark-app",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def started(
    directory: Path, *arguments: str, given: Mapping[str, str], program: str
) -> subprocess.CompletedProcess[str]:
    """Run the entrypoint with an echo in the place of a program; its output is what that is given, word by word."""
    echo = directory / program
    echo.write_text(ECHO)
    echo.chmod(0o755)
    path = f"{directory}:{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        [ENTRYPOINT, *arguments], env={"PATH": path, **given}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [(), ("doctor", "--json")], ids=str)
def test_without_driver_and_executor_it_is_the_consumer_with_the_command_that_is_given(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = started(tmp_path, *arguments, given={}, program="python")
    assert ran.stdout.splitlines() == ["-m", "services.cdc_consumer", *arguments]


@pytest.mark.parametrize(
    ("given", "master", "memory"),
    [
        ({}, "k8s://https://kubernetes.default.svc:443", "3g"),
        ({"SPARK_MASTER": "local[4]", "SPARK_DRIVER_MEMORY": "2g"}, "local[4]", "2g"),
    ],
    ids=["of-the-submit", "of-the-settings"],
)
def test_as_driver_it_is_the_consumer_with_the_properties_of_the_submit(
    tmp_path: Path, given: Mapping[str, str], master: str, memory: str
) -> None:
    file = tmp_path / "spark.properties"
    file.write_text(PROPERTIES)
    words = ("driver", "--properties-file", str(file), "--class", "org.apache.spark.deploy.PythonRunner", MAIN)

    ran = started(
        tmp_path, *words, "doctor", "--json", given={"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7", **given}, program="python"
    )

    assert ran.stdout.splitlines() == [
        *("-m", "services.cdc_consumer", "doctor", "--json"),
        f"--deploy-mode client --properties-file {file} --conf spark.driver.host=10.0.0.7 pyspark-shell",
        master,
        memory,
    ], ran.stderr


@pytest.mark.parametrize("main", ["local:///app/services/dead_letter/__main__.py", "gs://bucket/job.py", None])
def test_a_driver_of_anything_but_the_consumer_is_refused(tmp_path: Path, main: str | None) -> None:
    words = ("driver", "--class", "org.apache.spark.deploy.PythonRunner", *([main] if main else []))
    ran = started(tmp_path, *words, given={}, program="python")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"this image runs {MAIN} alone, not '{main or ''}'" in ran.stderr


def test_as_executor_it_is_what_spark_on_kubernetes_starts_in_a_pod(tmp_path: Path) -> None:
    options = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Dtwo=a b",
        "SPARK_JAVA_OPT_3": "no",
    }
    ran = started(
        tmp_path, "executor", given={**OF_AN_EXECUTOR, **options, "SPARK_CLASSPATH": "/more/*"}, program="java"
    )
    assert ran.stdout.splitlines() == [
        "-Dspark.driver.port=7078",
        "-Dtwo=a b",
        "-Xms1g",
        "-Xmx1g",
        "-cp",
        f"/opt/spark/conf:/more/*:{JARS}/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078"),
        *("--executor-id", "3"),
        *("--cores", "2"),
        *("--app-id", "spark-app"),
        *("--hostname", "10.0.0.7"),
        *("--resourceProfileId", "0"),
        *("--podName", "consumer-exec-3"),
    ]


@pytest.mark.parametrize("missing", sorted(OF_AN_EXECUTOR))
def test_an_executor_that_is_given_too_little_starts_nothing(tmp_path: Path, missing: str) -> None:
    given = {name: value for name, value in OF_AN_EXECUTOR.items() if name != missing}
    ran = started(tmp_path, "executor", given=given, program="java")
    assert (ran.returncode != 0, ran.stdout) == (True, "")
    assert missing in ran.stderr
