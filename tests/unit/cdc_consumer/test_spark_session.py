"""What Spark is configured with."""

import pytest

from services.cdc_consumer.adapters.spark.spark_session import JAVA_OPTIONS, spark_settings


@pytest.mark.parametrize(
    ("environ", "collector"),
    [
        ({}, ["-XX:+UseSerialGC"]),
        ({"JAVA_TOOL_OPTIONS": "-XX:MaxRAMPercentage=50"}, ["-XX:+UseSerialGC"]),
        ({"JAVA_TOOL_OPTIONS": "-XX:+UseG1GC"}, []),
        ({"JDK_JAVA_OPTIONS": "-ea -XX:+UseParallelGC"}, []),
    ],
)
def test_java_is_given_one_garbage_collector(environ: dict[str, str], collector: list[str]) -> None:
    options = spark_settings("local[2]", "1g", 2, environ)[JAVA_OPTIONS].split()

    assert [option for option in options if "GC" in option] == collector


@pytest.mark.parametrize("master", ["local[2]", "spark://spark:7077", "yarn", "k8s://kubernetes:443", "submitted"])
def test_every_task_runs_once_on_an_executor_that_stays_wherever_spark_runs(master: str) -> None:
    settings = spark_settings(master, "1g", 2)

    # A task that Spark runs a second time pulls again. It gets other messages, and no process extends the leases of the
    # first attempt's: those come again an ack deadline late. So the query fails with its first task, and the restart
    # is the retry.
    assert settings["spark.task.maxFailures"] == "1"
    # A speculative copy of a slow task does the same beside the task that it doubts.
    assert settings["spark.speculation"] == "false"
    # TASKS counts on as many slots as there were at the start. Spark would take idle executors away between
    # micro-batches, and with fewer slots a task that waits for one leaves its messages' leases unextended.
    assert settings["spark.dynamicAllocation.enabled"] == "false"
