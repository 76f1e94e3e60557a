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
