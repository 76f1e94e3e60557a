"""Which versions of Spark the consumer runs on, and how its source answers those before 4.2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from services.cdc_consumer.adapters.spark import data_source_api
from services.cdc_consumer.adapters.spark.data_source_api import ReadMaxRows, as_spark_asks
from services.cdc_consumer.adapters.spark.spark_version import check_spark
from shared.contracts.errors import MisconfiguredError

LIMIT = ReadMaxRows(7)


class Reader:
    """A reader written for Spark 4.2, of a source with so many micro-batches."""

    def __init__(self, micro_batches: int) -> None:
        self.left = micro_batches
        self.drain = False
        self.asked: list[tuple[dict[str, int], object]] = []

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadMaxRows:  # noqa: N802
        return LIMIT

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.drain = True

    def latestOffset(self, start: dict[str, int], limit: ReadMaxRows) -> dict[str, int]:  # noqa: N802
        self.asked.append((start, limit))
        self.left -= 1
        return {"batch": start["batch"] + 1} if self.left >= 0 else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(f"{start['batch']} to {end['batch']}")]


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this Spark be one that gives no start and no limit, and does not drain."""
    monkeypatch.setattr(data_source_api, "SPARK_DRAINS", False)


@pytest.mark.usefixtures("old_spark")
def test_a_spark_that_gives_no_start_gets_the_offset_after_its_latest_plan() -> None:
    reader = Reader(9)
    asked: Any = as_spark_asks(reader)
    start = asked.initialOffset()
    ends = []
    for _ in range(3):
        end = asked.latestOffset()
        assert asked.latestOffset() == end, "not planned yet: the same micro-batch"
        assert [one.value for one in asked.partitions(start, end)] == [f"{start['batch']} to {end['batch']}"]
        ends.append(end["batch"])
        start = end

    assert ends == [1, 2, 3]
    assert all(limit == LIMIT for _start, limit in reader.asked)
    assert not reader.drain


@pytest.mark.usefixtures("old_spark")
def test_a_query_that_goes_on_starts_at_the_empty_range_that_spark_plans_first() -> None:
    asked: Any = as_spark_asks(Reader(9))
    asked.partitions({"batch": 41}, {"batch": 41})

    assert asked.latestOffset() == {"batch": 42}


@pytest.mark.usefixtures("old_spark")
def test_the_file_is_made_once_nothing_is_left_and_not_before(tmp_path: Path) -> None:
    reader, drained = Reader(2), tmp_path / "drained"
    asked: Any = as_spark_asks(reader, str(drained))
    start = asked.initialOffset()
    seen = []
    for _ in range(3):
        end = asked.latestOffset()
        seen.append((end != start, drained.exists()))
        asked.partitions(start, end)
        start = end

    assert reader.drain
    assert seen == [(True, False), (True, False), (False, True)]


def test_a_spark_that_gives_all_that_gets_the_reader_itself() -> None:
    reader: Any = Reader(1)

    assert as_spark_asks(reader) is reader


@pytest.mark.parametrize("version", ["4.0.0", "4.0.1", "4.1.2", "4.2.1", "4.3.0", "4.3.1.dev0"])
def test_a_spark_that_the_tests_run_on_is_taken(version: str) -> None:
    check_spark(version)


@pytest.mark.parametrize("version", ["3.5.6", "4.4.0", "5.0.0"])
def test_another_spark_is_refused_with_the_versions_that_are_not(version: str) -> None:
    with pytest.raises(MisconfiguredError, match=rf"Spark 4\.0 and newer, below 4\.4; PySpark {version} is there"):
        check_spark(version)
