"""What every CdcWriter promises: the fake, and our append streams (on the stand-in)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.schema.tables import CHANGE_SEQUENCE_NUMBER, TableDefinition
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.ports import CdcWriter, DestinationTables, Heard, TableTroubleError
from shared.bigquery.client import open_client
from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message, messages_table, table_definition
from tests.fakes.cdc_writer import NEVER, FakeCdcWriter
from tests.fakes.tables import FakeTables
from tests.integration.stand_in import PROJECT, StandIn

PLANES = table_definition(a_header())
WIDER_HEADER = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
WIDER = table_definition(WIDER_HEADER)


@dataclass
class Place:
    """A writer, the tables it writes to, what a query of them returns, and a BigQuery that can go away."""

    writer: CdcWriter
    tables: DestinationTables
    rows: Callable[[str], Mapping[int, Mapping[str, Any]]]
    make_unavailable: Callable[[], None]
    come_back: Callable[[], None]
    appended: Callable[[str], Sequence[Mapping[str, Any]]]
    """The rows of a history."""
    fall_silent: Callable[[str], None]
    """Give no answer to appends to this table."""
    answer_late: Callable[[], None]
    """Answer, from now on and all that was not answered."""

    def write(self, *changes: Change, header: Header | None = None) -> None:
        definition, rows = encoded(*changes, header=header)
        assert self.writer.append(definition, rows).refused() == []


def encoded(*changes: Change, header: Header | None = None) -> tuple[TableDefinition, pa.Table]:
    (table,) = decode_messages(messages_table(a_message(*changes, header=header)), Nanoseconds(0)).tables
    return table.definition, table.rows


class CdcWriterContract:
    def test_upserts_and_deletes_are_applied(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(a_change(1), a_change(2), a_change(3, seats="180", name=None))
        place.write(a_change(1, 2, op="DELETE"), a_change(2, 3, name="new"))

        rows = place.rows("planes")
        assert set(rows) == {2, 3}
        assert rows[2]["name"] == "new"
        assert (rows[3]["name"], rows[3]["seats"]) == (None, 180)
        assert rows[2]["_millrace_sequence"].startswith("0000000000000003/")

    def test_the_larger_sequence_wins_in_whatever_order_they_come(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(a_change(1, 5))
        place.write(a_change(1, 4))
        place.write(a_change(2, 5, op="DELETE"))
        place.write(a_change(2, 4))

        assert {key: row["name"] for key, row in place.rows("planes").items()} == {1: "name 5"}

    def test_the_same_rows_twice_change_nothing(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        for _ in range(2):
            place.write(a_change(1), a_change(2, op="DELETE"))

        assert set(place.rows("planes")) == {1}

    def test_refused_rows_are_returned_by_index_and_all_others_are_durable(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        definition, rows = encoded(*[a_change(number) for number in range(10)])
        spoilt = pc.if_else(pa.array([n in (2, 7) for n in range(10)]), "junk", rows[CHANGE_SEQUENCE_NUMBER])
        rows = rows.set_column(rows.schema.get_field_index(CHANGE_SEQUENCE_NUMBER), CHANGE_SEQUENCE_NUMBER, spoilt)
        appending = place.writer.append(definition, rows)
        errors = appending.refused()

        assert [(error.index, error.reason) for error in errors] == [
            (2, Reason.REFUSED_BY_BIGQUERY),
            (7, Reason.REFUSED_BY_BIGQUERY),
        ]
        assert all(error.detail for error in errors)
        assert set(place.rows("planes")) == set(range(10)) - {2, 7}
        assert appending.refused() == errors

    def test_a_row_too_large_is_refused_by_itself(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        definition, rows = encoded(a_change(1), a_change(2, name="x" * 9_100_000), a_change(3))
        (error,) = place.writer.append(definition, rows).refused()

        assert (error.index, error.reason) == (1, Reason.TOO_LARGE)
        assert set(place.rows("planes")) == {1, 3}

    def test_a_table_that_is_not_there_is_that_tables_trouble_until_it_is_made(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        with pytest.raises(TableTroubleError):
            place.write(a_change(1), header=a_header("nowhere"))
        place.write(a_change(1))
        place.tables.ensure(table_definition(a_header("nowhere")))
        place.write(a_change(2), header=a_header("nowhere"))

        assert (set(place.rows("planes")), set(place.rows("nowhere"))) == ({1}, {2})

    def test_older_column_lists_can_be_written_beside_newer_ones(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(a_change(1))
        place.tables.ensure(WIDER)
        place.write(a_change(2, colour="red"), header=WIDER_HEADER)
        place.write(a_change(3))
        place.write(a_change(2, 2))  # an upsert is the whole row: what it does not have is NULL

        rows = place.rows("planes")
        assert {key: row["colour"] for key, row in rows.items() if row.get("colour")} == {}
        assert set(rows) == {1, 2, 3}

    def test_while_bigquery_is_unavailable_it_is_transient_and_calling_again_goes_on(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(a_change(1))
        place.make_unavailable()
        definition, rows = encoded(a_change(1, 2), a_change(2))
        appending = place.writer.append(definition, rows)
        for _ in range(2):
            with pytest.raises(TransientError) as raised:
                appending.refused()
            assert not isinstance(raised.value, TableTroubleError)
        assert set(place.rows("planes")) == {1}
        place.come_back()

        assert appending.refused() == []
        assert {key: row["name"] for key, row in place.rows("planes").items()} == {1: "name 2", 2: "name 1"}

    def test_of_several_appends_those_that_are_answered_are_heard_and_the_others_stay_under_way(
        self, place: Place
    ) -> None:
        airports = table_definition(a_header("airports"))
        for definition in (PLANES, airports):
            place.tables.ensure(definition)
        place.fall_silent("planes")
        definition, rows = encoded(a_change(1), a_change(2))
        unanswered, answered = place.writer.append(definition, rows), place.writer.append(airports, rows)
        assert unanswered.hear(timedelta(seconds=0.2)) is not Heard.ALL
        assert unanswered.hear(timedelta(seconds=0.2)) is Heard.NOTHING
        assert unanswered.hear(timedelta(0)) is Heard.NOTHING
        assert answered.hear(timedelta(seconds=30)) is Heard.ALL
        assert answered.refused() == []
        assert set(place.rows("airports")) == {1, 2}
        place.answer_late()

        assert unanswered.hear(timedelta(seconds=30)) is Heard.ALL
        assert unanswered.refused() == []
        assert set(place.rows("planes")) == {1, 2}

    def test_an_append_that_is_left_holds_up_no_later_one(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(a_change(1))
        place.fall_silent("planes")
        left = place.writer.append(*encoded(a_change(1, 2)))
        assert left.hear(timedelta(seconds=0.5)) is not Heard.ALL
        left.leave()
        place.answer_late()
        place.write(a_change(1, 3))

        assert {key: row["name"] for key, row in place.rows("planes").items()} == {1: "name 3"}

    def test_a_late_answer_is_not_taken_for_that_of_a_later_append(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(a_change(1))
        place.fall_silent("planes")
        definition, rows = encoded(a_change(1, 2))
        assert place.writer.append(definition, rows).hear(timedelta(seconds=0.5)) is Heard.NOTHING
        place_of_it = rows.schema.get_field_index(CHANGE_SEQUENCE_NUMBER)
        refused = place.writer.append(
            definition, rows.set_column(place_of_it, CHANGE_SEQUENCE_NUMBER, pa.array(["junk"]))
        )
        place.answer_late()

        assert [error.index for error in refused.refused()] == [0]
        assert {key: row["name"] for key, row in place.rows("planes").items()} == {1: "name 2"}

    def test_a_history_keeps_every_change_and_every_repeat_of_it(self, place: Place) -> None:
        messages = messages_table(a_message(a_change(1, 2), a_change(1, 1), a_change(1, 3, op="DELETE")))
        plan = Plan(read_tables_file('[defaults]\nmode = "history"'))
        (table,) = decode_messages(messages, Nanoseconds(0), plan).tables
        place.tables.ensure(table.definition)
        for _ in range(2):
            assert place.writer.append(table.definition, table.rows).refused() == []

        written = [(row["_millrace_sequence"][:16], row["name"]) for row in place.appended("planes_changelog")]
        assert sorted(written, key=str) == [
            *[("0000000000000001", "name 1")] * 2,
            *[("0000000000000002", "name 2")] * 2,
            *[("0000000000000003", None)] * 2,
        ]

    def test_many_tables_at_once(self, place: Place) -> None:
        headers = [a_header(f"table{number}") for number in range(5)]
        started = []
        for number, header in enumerate(headers):
            definition, rows = encoded(a_change(number), header=header)
            place.tables.ensure(definition)
            started.append(place.writer.append(definition, rows))
        assert [appending.refused() for appending in reversed(started)] == [[]] * 5

        assert [set(place.rows(f"table{number}")) for number in range(5)] == [{n} for n in range(5)]

    def test_a_large_append_arrives_whole(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.write(*[a_change(number, name="x" * 500) for number in range(12_000)])

        assert len(place.rows("planes")) == 12_000


class TestFakeCdcWriter(CdcWriterContract):
    @pytest.fixture
    def place(self) -> Place:
        tables = FakeTables()
        writer = FakeCdcWriter(tables)

        def unavailable(times: int) -> Callable[[], None]:
            def go() -> None:
                writer.unavailable = times

            return go

        def answer_late() -> None:
            writer.answers_after.clear()
            writer.answer_late()

        return Place(
            writer,
            tables,
            lambda table: {key[0]: row for key, row in writer.rows(table).items()},  # type: ignore[misc]
            unavailable(1_000),
            unavailable(0),
            writer.appended.__getitem__,
            lambda table: writer.answers_after.update({table: NEVER}),
            answer_late,
        )


class TestAppendStreams(CdcWriterContract):
    @pytest.fixture
    def place(self, bigquery_stand_in: tuple[str, str]) -> Iterator[Place]:
        stand_in = StandIn(bigquery_stand_in)
        rest, grpc = bigquery_stand_in

        def rows(table: str) -> Mapping[int, Mapping[str, Any]]:
            found = stand_in.client.query_and_wait(f"SELECT * FROM `{PROJECT}.{stand_in.dataset}.{table}`")
            return {row["id"]: dict(row.items()) for row in found}

        with open_storage_channel(grpc) as channel:
            writer = AppendStreams(channel, PROJECT, stand_in.dataset, Stop(), SystemClock())
            tables = BigQueryTables(open_client(PROJECT, rest), PROJECT, stand_in.dataset)
            yield Place(
                writer,
                tables,
                rows,
                lambda: stand_in.control("POST", "faults", action="close", status="UNAVAILABLE"),
                lambda: stand_in.control("DELETE", "faults"),
                lambda table: [
                    dict(row.items())
                    for row in stand_in.client.query_and_wait(f"SELECT * FROM `{stand_in.dataset}.{table}`")
                ],
                lambda table: stand_in.control(
                    "POST", "faults", action="stall", table=f"{PROJECT}.{stand_in.dataset}.{table}"
                ),
                lambda: stand_in.control("DELETE", "faults"),
            )
            stand_in.control("DELETE", "faults")
            writer.close()
