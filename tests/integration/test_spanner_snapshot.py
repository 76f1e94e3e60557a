"""Rows from before the stream: read by real readers from the emulator, and again on demand."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from deploy.local.platform.processes import Process
from deploy.local.platform.source import SpannerDatabase, Write
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.integration.log_lines import events
from tests.integration.readers import STARTS
from tests.worlds.spanner_pipeline import SpannerPipeline
from tests.worlds.spanner_snapshotting import DDL, Topic, fill

pytestmark = pytest.mark.integration

CLAIMED = "snapshot_range_claimed"
ROWS = 10_000


@pytest.fixture
def pipeline(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerPipeline:
    """Return a pipeline of a table, and of one interleaved in it of which one column is watched."""
    return spanner_pipeline(database(*DDL), database())


def finished(reader: Process, table: str = "Planes") -> bool:
    """Return whether a reader has seen that the snapshot of a table is over."""
    if reader.exit_code is not None:
        raise AssertionError(reader.obituary())
    return any(one["table"] == table for one in events(reader, "snapshot_finished"))


def test_rows_from_before_the_stream_come_once_at_the_time_it_begins_and_changes_win(pipeline: SpannerPipeline) -> None:
    expected = dict(fill(pipeline.database, 3_000))
    pipeline.database.commit(
        [
            Write("insert", "Seats", {"Id": 1, "Class": name, "Number": number, "Taken": number % 2 == 0})
            for name, number in [("C", 1), ("C", 2), ("Y", 1), (None, 7)]
        ]
    )
    reader = pipeline.start()
    pipeline.database.commit([Write("delete", "Planes", {"Id": key}) for key in range(100, 200)])
    pipeline.database.commit([Write("update", "Planes", {"Id": 7, "Name": "seven"})])
    for key in range(100, 200):
        del expected[json.dumps({"Id": str(key)})]
    expected[json.dumps({"Id": "7"})] = {"Name": "seven"}

    topic = Topic(pipeline)
    topic.wait_for("all rows", lambda: finished(reader) and topic.origins["Planes", "snapshot"] >= 3_000)
    topic.wait_for("all changes", lambda: topic.live("Planes") == expected)
    assert topic.origins["Planes", "snapshot"] == 3_000
    assert topic.live("Seats") == {
        json.dumps({"Class": "C", "Id": "1", "Number": "1"}): {"Taken": False},
        json.dumps({"Class": "C", "Id": "1", "Number": "2"}): {"Taken": True},
        json.dumps({"Class": "Y", "Id": "1", "Number": "1"}): {"Taken": False},
        json.dumps({"Class": None, "Id": "1", "Number": "7"}): {"Taken": False},
    }
    assert not topic.ordering_keys["snapshot"] & topic.ordering_keys["stream"]
    (requested,) = events(reader, "snapshot_requested")
    assert requested["tables"] == ["Planes", "Seats"]


def test_rows_come_again_on_demand_while_everything_runs(pipeline: SpannerPipeline) -> None:
    expected = dict(fill(pipeline.database, 1_000))
    first, second = pipeline.start(SNAPSHOT="never"), pipeline.start()
    topic = Topic(pipeline)
    expected |= fill(pipeline.database, 10, first=1_000)
    topic.wait_for("the stream", lambda: len(topic.live("Planes")) == 10)
    assert pipeline.run_command("snapshot", "--status") == (0, "")
    assert pipeline.run_command("snapshot", "Planes", "--dry-run")[0] == 0
    code, output = pipeline.run_command("snapshot", "Planets")
    assert code == 2
    assert "Planes, Seats" in output
    assert events(first, CLAIMED) == events(second, CLAIMED) == []

    code, output = pipeline.run_command("snapshot", "Planes", "--json")
    assert (code, json.loads(output)["snapshots"][0]["state"]) == (0, "READING")
    topic.wait_for("all rows", lambda: topic.live("Planes") == expected)
    topic.wait_for("the end", lambda: finished(first) or finished(second))
    assert "done, 1010 rows, complete since " in pipeline.run_command("snapshot", "--status")[1]
    before = topic.origins["Planes", "snapshot"]
    pipeline.run_command("snapshot", "Planes")
    topic.wait_for("all rows again", lambda: topic.origins["Planes", "snapshot"] == 2 * before)
    assert topic.live("Planes") == expected


def rows_saved(pipeline: SpannerPipeline) -> int:
    """Return how many rows of planes are saved as read, all of them in one range."""
    query = "SELECT row_count FROM millrace_partitions_snapshots WHERE source_table = 'Planes'"
    return sum(int(str(row["row_count"])) for row in pipeline.partitions.query(query))


def test_readers_killed_in_the_midst_of_a_range_lose_no_row_and_none_is_read_again_up_to_a_saved_key(
    pipeline: SpannerPipeline,
) -> None:
    expected, saved = dict(fill(pipeline.database, ROWS)), 0
    topic = Topic(pipeline)
    for kill in range(2):
        reader = pipeline.start(SNAPSHOT_ROWS_PER_SECOND="500")

        def more(before: int = saved) -> bool:
            return rows_saved(pipeline) > before

        topic.wait_for("rows that are saved", more)
        pipeline.database.commit([Write("update", "Planes", {"Id": kill, "Name": "changed"})])
        pipeline.database.commit([Write("delete", "Planes", {"Id": ROWS - 1 - kill})])
        expected[json.dumps({"Id": str(kill)})] = {"Name": "changed"}
        del expected[json.dumps({"Id": str(ROWS - 1 - kill)})]
        reader.kill()
        saved = rows_saved(pipeline)
        assert 0 < saved < ROWS
    reader = pipeline.start()
    topic.wait_for("all rows", lambda: finished(reader) and topic.live("Planes") == expected)
    assert [one["rows"] for one in events(reader, CLAIMED) if one["table"] == "Planes"] == [saved]
    assert rows_saved(pipeline) == ROWS


@pytest.mark.parametrize("hours", [2, 30])
def test_a_time_that_cannot_be_read_any_more_is_replaced(pipeline: SpannerPipeline, hours: int) -> None:
    expected = dict(fill(pipeline.database, 500))
    reader = pipeline.start(SNAPSHOT="never")
    reader.ask_to_end()
    reader.wait(STARTS)
    pipeline.run_command("snapshot", "Planes")
    long_ago = Nanoseconds(pipeline.database.now() - hours * 3_600 * 1_000_000_000)
    row = Write(
        "update",
        "millrace_partitions_snapshots",
        {"source_table": "Planes", "range_number": 0, "read_timestamp": format_timestamp(long_ago)},
    )
    pipeline.partitions.commit([row])

    reader = pipeline.start()
    topic = Topic(pipeline)
    topic.wait_for("all rows", lambda: finished(reader) and topic.live("Planes") == expected)
    assert '"snapshot_goes_on_at_a_new_time"' in reader.output()


GOOGLESQL_TYPES: Mapping[str, tuple[str, Any]] = {
    "B": ("BOOL", True),
    "I": ("INT64", 9_007_199_254_740_993),
    "F": ("FLOAT64", 1.5e300),
    "F32": ("FLOAT32", 1.1),
    "N": ("NUMERIC", Decimal("123456789.12")),
    "S": ("STRING(MAX)", 'é"\\\n'),
    "Y": ("BYTES(MAX)", b"\x00\xff"),
    "D": ("DATE", date(2024, 2, 29)),
    "T": ("TIMESTAMP", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    "J": ("JSON", {"a": [1, 2.5, None], "é": "x"}),
    "Nothing": ("STRING(MAX)", None),
    "AI": ("ARRAY<INT64>", (1, -2)),
    "Texts": ("ARRAY<STRING(MAX)>", ("a", "")),
    "AY": ("ARRAY<BYTES(MAX)>", (b"\x01",)),
    "AE": ("ARRAY<BOOL>", ()),
    "AF": ("ARRAY<FLOAT64>", (0.1,)),
}
POSTGRESQL_TYPES: Mapping[str, tuple[str, Any]] = {
    "b": ("boolean", False),
    "i": ("bigint", -9_007_199_254_740_993),
    "f": ("double precision", 0.1),
    "r": ("real", 1.1),
    "n": ("numeric", Decimal("1.50")),
    "s": ("varchar", "é"),
    "y": ("bytea", b"\x00\xff"),
    "d": ("date", date(2024, 2, 29)),
    "t": ("timestamptz", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    "j": ("jsonb", {"a": [1, 2.5, None]}),
    "ai": ("bigint[]", (1, 2)),
    "as": ("varchar[]", ("a",)),
}


@pytest.mark.parametrize("postgresql", [False, True])
def test_a_value_of_every_type_is_written_as_the_stream_writes_it(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline], postgresql: bool
) -> None:
    types = POSTGRESQL_TYPES if postgresql else GOOGLESQL_TYPES
    if postgresql:
        columns = "".join(f', "{name}" {kind}' for name, (kind, _value) in types.items())
        ddl = f'CREATE TABLE "Planes" ("Id" bigint PRIMARY KEY, "Touched" bigint{columns})'
        stream = """CREATE CHANGE STREAM "Everything" FOR "Planes" WITH (value_capture_type = 'NEW_ROW')"""
    else:
        columns = "".join(f", {name} {kind}" for name, (kind, _value) in types.items())
        ddl = f"CREATE TABLE Planes (Id INT64, Touched INT64{columns}) PRIMARY KEY (Id)"
        stream = "CREATE CHANGE STREAM Everything FOR Planes OPTIONS (value_capture_type = 'NEW_ROW')"
    watched = database(ddl, stream, postgresql=postgresql)
    pipeline = spanner_pipeline(watched, database())
    values = {name: value for name, (_kind, value) in types.items()}
    watched.commit([Write("insert", "Planes", {"Id": 1, "Touched": 0, **values})])
    reader = pipeline.start()
    topic = Topic(pipeline)
    topic.wait_for("the row", lambda: finished(reader) and len(topic.live("Planes")) == 1)
    (read,) = topic.live("Planes").values()
    watched.commit([Write("update", "Planes", {"Id": 1, "Touched": 1})])
    topic.wait_for("the change", lambda: topic.origins["Planes", "stream"] == 1)
    (changed,) = topic.live("Planes").values()
    assert (read["Touched"], changed["Touched"]) == ("0", "1")
    assert set(read) == {"Touched", *types}
    assert {**read, "Touched": "1"} == changed
