"""A reader killed again and again while it reads 100,000 rows that change: equal in the end, and nothing read twice.

"Twice" is what was read up to a place that had been saved: no row up to there is published again, whoever goes on. The
emulator reads each table as one range, so there are four of them, two under way at any time.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from deploy.local.platform.processes import Process, ProcessDiedError
from deploy.local.platform.source import SpannerDatabase, Write
from shared.contracts.change_batch import ChangeBatch, decode_batch
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import take
from tests.worlds.spanner_pipeline import SpannerPipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TABLES = ("Boats", "Cars", "Planes", "Trains")
ROWS = 25_000
"""In each table."""
KILLS = 5
_ROWS_A_COMMIT = 2_500
_BETWEEN_KILLS = 8_000
_TIMEOUT = timedelta(minutes=4)
"""The emulator goes on with the queries of killed readers, and a stream that begins again takes its turn."""
_ROWS_PER_SECOND = "2500"


@dataclass
class Read:
    """How far a range is, as it is saved."""

    rows: int
    last: int
    """The key up to which everything is confirmed; -1: nothing."""
    state: str
    held: bool


@dataclass
class Mirror:
    """What has arrived on a topic: of each row what has the highest sequence, and what should not have come again."""

    pipeline: SpannerPipeline
    rows: dict[str, dict[int, tuple[str, str | None]]] = field(default_factory=lambda: defaultdict(dict))
    saved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, -1))
    """The key up to which each table was read when the last reader was killed."""
    killed_at: int = 0
    """In nanoseconds, by the clock of Pub/Sub's emulator, which is this machine's."""
    snapshot_rows: int = 0
    again: list[tuple[str, int]] = field(default_factory=list)
    """Rows of a snapshot that came although they had been read before the last kill."""
    _messages: set[str] = field(default_factory=set)

    def pull(self) -> None:
        """Take what is on the subscription now; what Pub/Sub delivers again is not published again."""
        for message in take(self.pipeline.channel, self.pipeline.topology.subscription):
            if message.message_id not in self._messages:
                self._messages.add(message.message_id)
                late = message.publish_time.ToNanoseconds() > self.killed_at
                self._apply(decode_batch(message.data), late)

    def _apply(self, batch: ChangeBatch, after_the_kill: bool) -> None:
        table, rows = batch.header.table, self.rows[batch.header.table]
        of_snapshot = batch.header.origin == "snapshot"
        for sequence, key, row in zip(batch.sequence, batch.keys, batch.rows, strict=True):
            number, values = int(json.loads(bytes(key))["Id"]), json.loads(bytes(row))
            if of_snapshot:
                self.snapshot_rows += 1
                if after_the_kill and number <= self.saved[table]:
                    self.again.append((table, number))
            if number not in rows or rows[number][0] <= sequence:
                rows[number] = sequence, values and values["Name"]

    def live(self) -> Mapping[str, Mapping[int, str]]:
        """Return the rows that are not deleted."""
        return {
            table: {key: name for key, (_sequence, name) in rows.items() if name is not None}
            for table, rows in self.rows.items()
        }

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until what has arrived, or is saved, is as it should be."""
        self.pipeline.wait(ready, what, self.pull, _TIMEOUT)


@pytest.fixture
def pipeline(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerPipeline:
    """Return a pipeline of four tables that are filled before they have a change stream."""
    watched = database(*(f"CREATE TABLE {one} (Id INT64, Name STRING(MAX)) PRIMARY KEY (Id)" for one in TABLES))
    for table in TABLES:
        for start in range(0, ROWS, _ROWS_A_COMMIT):
            keys = range(start, start + _ROWS_A_COMMIT)
            watched.commit([Write("insert", table, {"Id": key, "Name": f"é{key}"}) for key in keys])
    watched.alter("CREATE CHANGE STREAM Everything FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')")
    return spanner_pipeline(watched, database())


def test_killed_five_times_it_ends_equal_and_reads_nothing_up_to_a_saved_place_again(pipeline: SpannerPipeline) -> None:
    expected = {table: {key: f"é{key}" for key in range(ROWS)} for table in TABLES}
    mirror = Mirror(pipeline)
    went_on = 0
    for kill in range(KILLS):
        reader = pipeline.start(SNAPSHOT_ROWS_PER_SECOND=_ROWS_PER_SECOND)
        change(pipeline.database, expected, kill)
        before = sum(one.rows for one in saved(pipeline).values())

        def due(before: int = before) -> bool:
            ranges = saved(pipeline).values()
            held = [one for one in ranges if one.held and one.state == "CUT"]
            return (
                sum(one.rows for one in ranges) >= before + _BETWEEN_KILLS
                and any(one.rows < ROWS for one in held)
                and all(one.rows for one in held)
            )

        mirror.wait_for("ranges to be read half, and that to be saved", due)
        check_goes_on(reader, mirror)
        reader.kill()
        mirror.killed_at = time.time_ns()
        went_on += sum(0 < one.rows < ROWS for one in saved(pipeline).values())
        mirror.saved = {table: one.last for table, one in saved(pipeline).items()}
    assert went_on >= KILLS, "each of them was in the midst of a range"
    assert sum(last + 1 for last in mirror.saved.values()) < len(TABLES) * ROWS, "killed before the end"

    reader = pipeline.start()
    change(pipeline.database, expected, KILLS)
    mirror.wait_for("the end", lambda: all(one.state == "DONE" for one in saved(pipeline).values()))
    left = [("", 0, "not looked at")]

    def equal() -> bool:
        left[:] = differences(mirror, expected)
        return not left

    try:
        mirror.wait_for("everything", equal)
    except ProcessDiedError as error:
        raise AssertionError(f"{len(left)} rows differ, such as {left[:10]}") from error
    check_goes_on(reader, mirror)
    assert mirror.again == []
    assert len(TABLES) * ROWS <= mirror.snapshot_rows < 2 * len(TABLES) * ROWS
    assert all(one.rows == ROWS for one in saved(pipeline).values())


def change(database: SpannerDatabase, expected: Mapping[str, dict[int, str]], number: int) -> None:
    """Change and delete rows all over the tables, read already or not, and insert some."""
    for table in TABLES:
        changed = range(number, ROWS, 1_000)
        deleted = range(500 + number, ROWS, 1_000)
        inserted = range(ROWS + 10 * number, ROWS + 10 * number + 10)
        database.commit(
            [
                *(Write("update", table, {"Id": key, "Name": f"changed {number}"}) for key in changed),
                *(Write("delete", table, {"Id": key}) for key in deleted),
                *(Write("insert", table, {"Id": key, "Name": f"new {number}"}) for key in inserted),
            ]
        )
        expected[table].update(dict.fromkeys(changed, f"changed {number}") | dict.fromkeys(inserted, f"new {number}"))
        for key in deleted:
            del expected[table][key]


def differences(mirror: Mirror, expected: Mapping[str, dict[int, str]]) -> list[tuple[str, int, str]]:
    """Return the rows that are not as they should be, and what they are instead, with which sequence."""
    live = mirror.live()
    return [
        (table, key, str(mirror.rows[table].get(key)))
        for table, rows in expected.items()
        for key in rows.keys() | live.get(table, {}).keys()
        if rows.get(key) != live.get(table, {}).get(key)
    ]


def saved(pipeline: SpannerPipeline) -> Mapping[str, Read]:
    """Return how far each table is, which the emulator reads as one range."""
    found: dict[str, Read] = {}
    for row in pipeline.partitions.query(
        "SELECT source_table, row_count, last_key, state, owner FROM millrace_partitions_snapshots"
    ):
        assert row["source_table"] not in found, "one range for each table"
        rows, last = row["row_count"], row["last_key"]
        assert isinstance(rows, int)
        key = -1 if last is None else int(json.loads(str(last))[0])
        found[str(row["source_table"])] = Read(rows, key, str(row["state"]), row["owner"] is not None)
    return found


def check_goes_on(reader: Process, mirror: Mirror) -> None:
    """Check that a reader began no range anew of which something was saved before."""
    claims = events(reader, "snapshot_range_claimed")
    assert claims
    for one in claims:
        assert one["rows"] >= mirror.saved[one["table"]] + 1, one
