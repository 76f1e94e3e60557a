"""Rows are asked for by the key as the table had it then, whatever the reader knows of the table now."""

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.stream.completer import Completer, Completion
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.partitions import SpannerPartition
from services.spanner_reader.core.stream.records import Mod, PartitionToken, SpannerColumnType
from services.spanner_reader.ports import WatchedTable
from shared.contracts.timestamps import Nanoseconds
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.scripts import a_record

COLUMNS = (
    SpannerColumnType("Number", '{"code":"INT64"}', True, 1),
    SpannerColumnType("Plane", '{"code":"INT64"}', True, 2),
    SpannerColumnType("Name", '{"code":"STRING"}', False, 3),
    SpannerColumnType("Class", '{"code":"STRING"}', False, 4),
)
SEATS = WatchedTable("Seats", ("Plane", "Number"), COLUMNS, "NEW_VALUES")
NOW = Nanoseconds(10_000_000_000)


class Seats(FakeRows):
    """A table with one row."""

    async def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the row if it is asked for, by its key in the order of the table's."""
        row = {"Plane": "1", "Number": "7", "Name": "old", "Class": "first"}
        if [row[name] for name in table.primary_key] in map(json.loads, keys):
            yield [[row[column.name] for column in table.column_types]]


@pytest.mark.parametrize("known", [(), ("Plane", "Number"), ("Number", "Plane")])
def test_an_update_is_completed_of_a_table_whose_key_order_is_not_known_any_more(known: tuple[str, ...]) -> None:
    """Of a table that is dropped by now a restarted reader knows no order; one that is made again may have another."""
    topic, metrics, failed = Topic(), FakeMetrics(), list[BaseException | None]()

    async def scenario() -> None:
        catalog = FakeCatalog(SEATS)
        catalog.time = 2 * NOW
        completion = Completion(
            Seats(Versions(SteppingClock(NOW))),
            MirroredTables(catalog, ChangeMaker("source", 4, {"Seats": known}), lambda _table: True),
            ConfirmedPublishing(FakePublisher(topic), metrics, failed.append),
            lambda _table: False,
            metrics,
        )
        partition = SpannerPartition(token=PartitionToken("p"), start=NOW, watermark=NOW)
        completer = Completer(completion, SpannerOwnedPartition(partition), Stop())
        mod = Mod('{"Number":"7","Plane":"1"}', '{"Name":"new"}', "{}")
        record = replace(a_record(NOW), table="Seats", column_types=COLUMNS[:3], mods=(mod,), mod_type="UPDATE")
        record = replace(record, value_capture_type="NEW_VALUES")
        async with completer.working():
            completer.arrived(record)
            await completer.publish(record, *completion.changes.changes(record))
            await completer.finished()

    run_in_virtual_time(scenario())
    assert failed == []
    assert [json.loads(change.row or "null") for change in topic.changes] == [{"Name": "new", "Class": "first"}]
    assert metrics.completed_changes["exact"] == 1
