"""What makes changes of the rows of a table, whatever the reader has learnt of the table before."""

import pytest

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.records import SpannerColumnType
from services.spanner_reader.ports import WatchedTable
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_schema import FakeCatalog

SEATS = WatchedTable(
    "Seats",
    ("Plane", "Number"),
    (
        SpannerColumnType("Number", '{"code":"INT64"}', True, 1),
        SpannerColumnType("Plane", '{"code":"INT64"}', True, 2),
        SpannerColumnType("Name", '{"code":"STRING"}', False, 3),
    ),
    "NEW_ROW",
)


@pytest.mark.parametrize("learnt", [(), ("Number", "Plane"), ("Plane", "Number"), ("Other",)])
def test_a_place_in_a_table_is_in_the_order_of_its_key_at_that_time(learnt: tuple[str, ...]) -> None:
    """A table may be made, or made again with another key, after the reader has inspected the schema last."""
    changes = ChangeMaker("source", 4, {"Seats": learnt} if learnt else {})
    tables = MirroredTables(FakeCatalog(SEATS), changes, lambda _table: True)

    table, maker = tables.row_maker(SEATS, Nanoseconds(1_000))
    row = [{"Number": "7", "Plane": "1", "Name": "a"}[column.name] for column in table.column_types]
    assert maker.key_text(row) == '["1","7"]'
    assert maker.header.primary_key == table.primary_key == ("Plane", "Number")
