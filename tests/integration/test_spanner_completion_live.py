"""Updates that hold only what changed, completed while something else happens: on the Spanner emulator.

Each version of a row that is published has to be the one that was committed at its time. The emulator writes all
changes to one partition at a time, so two readers share them only where partitions end soon: those have an emulator
of their own.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase, SpannerInstance, Value
from shared.contracts.timestamps import format_timestamp
from tests.fakes.reader_metrics import SpannerMetrics
from tests.worlds.watched_schema import Watched, maker_of

pytestmark = pytest.mark.integration

Rows = dict[tuple[str, str], Mapping[str, Value]]
"""Of a key and a commit timestamp, the row."""


@dataclass
class Updated:
    """A watched database whose rows are updated by mutations of some columns, and what they were at each commit."""

    watched: Watched
    rows: dict[int, Mapping[str, Value]] = field(default_factory=dict)
    committed: Rows = field(default_factory=dict)

    def write(self, key: int, **values: Value) -> None:
        """Commit some columns of a row of table ``t``."""
        commit = self.watched.write("t", id=key, **values)
        self.rows[key] = {"a": None, "b": None, **self.rows.get(key, {}), **values}
        self.committed[str(key), format_timestamp(commit)] = self.rows[key]

    @property
    def published(self) -> Rows:
        """Return the rows of all changes, as `committed` has them."""
        found: Rows = {}
        for header, changes in self.watched.topic.batches:
            assert header.value_capture_type in ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
            names = [column.name for column in header.columns if column.name not in header.primary_key]
            for change in changes:
                assert "reconstructed" not in change.place
                row = json.loads(change.row or "null")
                values = {name: row[name] for name in names}
                place = json.loads(change.key)["id"], change.commit_timestamp
                assert found.setdefault(place, values) == values, "two readers publish the same row"
        return found


async def test_a_capture_type_that_is_altered_while_updates_are_read_is_followed_record_by_record(
    watching: Callable[..., Watched],
) -> None:
    updated = Updated(watching(captured="OLD_AND_NEW_VALUES"))
    watched = updated.watched

    def alter(captured: str) -> None:
        options = f"SET (value_capture_type = '{captured}')"
        watched.alter(
            f"ALTER CHANGE STREAM s SET OPTIONS (value_capture_type = '{captured}')", f"ALTER CHANGE STREAM s {options}"
        )

    async with watched.reading():
        for key in range(4):
            updated.write(key, a="first", b=None)
        await watched.until(lambda: updated.published == updated.committed)
        for turn, captured in enumerate(("NEW_ROW", "NEW_VALUES", "NEW_ROW_AND_OLD_VALUES", "OLD_AND_NEW_VALUES")):
            updated.write(0, a=f"{turn} before")
            updated.write(1, a=f"{turn} before")
            alter(captured)
            updated.write(0, a=f"{turn} after")
            updated.write(2, a=f"{turn} after")
            await watched.until(lambda: updated.published.keys() == updated.committed.keys())
    assert updated.published == updated.committed
    assert watched.resync_requests() == {}
    published = {header.value_capture_type for header, changes in watched.topic.batches if changes}
    assert published == {"NEW_ROW", "NEW_ROW_AND_OLD_VALUES"}
    assert watched.metrics.completed_changes[0] > 4


async def test_a_column_that_is_dropped_and_added_with_another_type_is_followed_while_updates_are_read(
    watching: Callable[..., Watched],
) -> None:
    updated = Updated(watching(captured="OLD_AND_NEW_VALUES"))
    watched = updated.watched

    def types() -> list[str]:
        headers = [header for header, changes in watched.topic.batches if changes]
        return [column.type for header in headers for column in header.columns if column.name == "b"]

    async with watched.reading():
        updated.write(0, a="first", b=None)
        updated.write(0, a="second")
        await watched.until(lambda: updated.published == updated.committed)
        assert set(types()) == {"INT64"}
        watched.alter("ALTER TABLE t DROP COLUMN b", "ALTER TABLE t DROP COLUMN b")
        watched.alter("ALTER TABLE t ADD COLUMN b STRING(MAX)", "ALTER TABLE t ADD COLUMN b varchar")
        updated.write(0, a="third")
        updated.write(0, b="text")
        updated.write(0, a="fourth")
        await watched.until(lambda: updated.published.keys() == updated.committed.keys())
        await watched.until(lambda: bool(watched.resync_requests()))
    assert updated.published == updated.committed
    assert types()[-1] == "STRING"
    assert watched.resync_requests() == {"t": {("column_type_changed", ("b",))}}


@pytest.mark.parametrize("reading", [False, True], ids=["before they are read", "while they are read"])
def test_updates_of_a_table_that_is_dropped_meanwhile_are_published_as_they_were(
    watching: Callable[..., Watched], reading: bool
) -> None:
    updated = Updated(watching("ALL", captured="OLD_AND_NEW_VALUES"))
    watched = updated.watched

    async def scenario() -> None:
        updated.write(0, a="first", b=None)
        updated.write(1, a="first", b=None)
        if reading:
            async with watched.reading():
                await watched.until(lambda: updated.published == updated.committed)
                write_and_drop()
                await watched.until(lambda: updated.published.keys() == updated.committed.keys())
        else:
            write_and_drop()
            async with watched.reading():
                await watched.until(lambda: updated.published.keys() == updated.committed.keys())

    def write_and_drop() -> None:
        for number in range(5):
            updated.write(number % 2, a=f"{number}")
        watched.alter("DROP TABLE t", "DROP TABLE t")

    asyncio.run(scenario())
    assert updated.published == updated.committed
    assert watched.metrics.completed_changes[0] == 5


@pytest.fixture
def churning(new_processes: Processes) -> Iterator[Watched]:
    """Return a database on an emulator of its own, whose partitions live for a second."""
    flags = {"override_change_stream_partition_token_alive_seconds": "1"}
    with emulators.spanner_emulator(new_processes, **flags) as address:
        instance = SpannerInstance.create(address, "millrace-test", "shared")

        def database(*statements: str, postgresql: bool = False) -> SpannerDatabase:
            return instance.create_database(statements, postgresql=postgresql)

        yield maker_of("GoogleSQL", database)(captured="OLD_AND_NEW_VALUES")
        new_processes.end_all()


async def test_two_readers_that_share_partitions_publish_each_version_as_it_was(churning: Watched) -> None:
    updated, readers = Updated(churning), (SpannerMetrics(), SpannerMetrics())
    for key in range(3):
        updated.write(key, a="first", b=key)
    async with churning.reading(owner="one", metrics=readers[0]), churning.reading(owner="two", metrics=readers[1]):
        async with asyncio.timeout(60):
            while not all(one.completed_changes[0] >= 10 for one in readers):
                updated.write(len(updated.committed) % 3, a=f"{len(updated.committed)}")
                await asyncio.sleep(0.02)
        await churning.until(lambda: updated.published.keys() == updated.committed.keys())
    expected = {at: {**row, "b": str(row["b"])} for at, row in updated.committed.items()}
    assert updated.published == expected
    assert sum(one.completed_changes[1] for one in readers) == 0
