import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from google.api_core import exceptions

from services.spanner_reader.adapters.doctor.inspection import inspect_stream
from services.spanner_reader.adapters.schema.catalog import (
    SpannerCatalog,
    StreamDefinition,
    check_partition_table,
    check_stream,
    check_tables,
    check_times,
    type_json,
    whole_rows,
)
from services.spanner_reader.adapters.spanner.dialects import Dialect
from services.spanner_reader.adapters.spanner.errors import spanner_errors
from services.spanner_reader.core.stream.changes import googlesql_type
from services.spanner_reader.ports import CatalogInspection, WatchedTable
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.runtime.findings import Level
from tests.unit.spanner_reader.scripts import COLUMNS

GOOD = StreamDefinition(
    watches_everything=False,
    value_capture_type="NEW_ROW",
    partition_mode="IMMUTABLE_KEY_RANGE",
    retention=timedelta(days=1),
)
SINGERS = WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW")
NOW = parse_timestamp("2026-11-21T12:00:00Z")


@pytest.mark.parametrize("capture", ["NEW_ROW", "NEW_ROW_AND_OLD_VALUES"])
def test_streams_that_carry_whole_rows_are_read_as_they_are(capture: str) -> None:
    stream = replace(GOOD, value_capture_type=capture)
    check_stream("s", stream)
    assert whole_rows("s", stream) is None


@pytest.mark.parametrize("capture", ["OLD_AND_NEW_VALUES", "NEW_VALUES"])
def test_streams_that_carry_parts_of_rows_are_read_and_a_statement_spares_the_reads(capture: str) -> None:
    stream = replace(GOOD, value_capture_type=capture)
    check_stream("Orders", stream)
    fix = "ALTER CHANGE STREAM Orders SET OPTIONS (value_capture_type = 'NEW_ROW')"
    assert whole_rows("Orders", stream) == fix
    (found,) = [one for one in inspect_stream("Orders", stream) if one.check == "stream Orders: capture type"]
    assert (found.level, found.fix) == (Level.WARNING, fix)


@pytest.mark.parametrize("option", ["exclude_insert", "exclude_update", "exclude_delete", "exclude_ttl_deletes"])
def test_streams_that_leave_changes_out_are_refused_with_the_statement_that_fixes_them(option: str) -> None:
    with pytest.raises(MisconfiguredError) as error:
        check_stream("Orders", replace(GOOD, exclusions=frozenset({option, "allow_txn_exclusion"})))
    assert f"ALTER CHANGE STREAM Orders SET OPTIONS ({option} = false)" in str(error.value)


def test_a_stream_from_which_transactions_can_be_excluded_is_read_and_the_fix_is_reported() -> None:
    check_stream("s", replace(GOOD, exclusions=frozenset({"allow_txn_exclusion"})))
    inspection = _inspected(["allow_txn_exclusion", "TRUE"], ["exclude_update", "false"])
    assert (inspection.shapes.exclusions, inspection.leaves_out) == (frozenset(), None)
    assert inspection.may_leave_out == "ALTER CHANGE STREAM s SET OPTIONS (allow_txn_exclusion = false)"


@pytest.mark.parametrize("option", ["exclude_insert", "exclude_update", "exclude_delete", "exclude_ttl_deletes"])
def test_an_inspection_sees_what_the_stream_leaves_out(option: str) -> None:
    inspection = _inspected([option, "true"])
    assert inspection.shapes.exclusions == {option}
    assert f"ALTER CHANGE STREAM s SET OPTIONS ({option} = false)" in (inspection.leaves_out or "")
    assert (_inspected().shapes.exclusions, _inspected().leaves_out) == (frozenset(), None)


def _inspected(*options: list[object]) -> CatalogInspection:
    """Return a look at a stream of everything with these options: the emulator knows none of them."""

    class Answers:
        name, dialect = "projects/p/instances/i/databases/d", Dialect.GOOGLESQL

        async def snapshot(
            self, *_statements: object, at: Nanoseconds | None, large: bool
        ) -> tuple[Nanoseconds, list[list[list[object]]]]:
            assert large
            return NOW, [[], []] if at else [[[True]], [["value_capture_type", "NEW_ROW"], *options], [], [], []]

    return asyncio.run(SpannerCatalog(Answers(), "s").inspect())  # type: ignore[arg-type]


@pytest.mark.parametrize("there", [(), ("Singers", "Orders")])
def test_a_stream_that_is_not_there_is_refused_with_those_that_are_and_the_statement_that_makes_it(
    there: Sequence[str],
) -> None:
    class Answers:
        name, dialect = "projects/p/instances/i/databases/d", Dialect.GOOGLESQL

        async def snapshot(self, *statements: object) -> tuple[Nanoseconds, list[list[list[object]]]]:
            return NOW, [[] for _ in statements]

        async def query(self, _statement: object) -> list[list[object]]:
            return [[name] for name in there]

    with pytest.raises(MisconfiguredError) as error:
        asyncio.run(SpannerCatalog(Answers(), "Ordres").definition())  # type: ignore[arg-type]
    message = str(error.value)
    assert "database projects/p/instances/i/databases/d has no change stream Ordres" in message
    assert ("set CHANGE_STREAM to one that it has (Orders, Singers)" in message) is bool(there)
    assert "CREATE CHANGE STREAM Ordres FOR ALL OPTIONS (value_capture_type = 'NEW_ROW', retention" in message


def test_streams_whose_partitions_change_their_range_are_refused() -> None:
    with pytest.raises(MisconfiguredError, match="MUTABLE_KEY_RANGE"):
        check_stream("s", replace(GOOD, partition_mode="MUTABLE_KEY_RANGE"))


def test_tables_without_a_key_are_named() -> None:
    check_tables("s", Dialect.GOOGLESQL, [SINGERS])
    nameless = replace(SINGERS, name="Nameless", primary_key=())
    with pytest.raises(MisconfiguredError, match=r"Nameless.* ALTER CHANGE STREAM S SET FOR"):
        check_tables("S", Dialect.GOOGLESQL, [SINGERS, nameless])
    with pytest.raises(MisconfiguredError, match=r'Nameless.* ALTER CHANGE STREAM "S" SET FOR'):  # else it would be s
        check_tables("S", Dialect.POSTGRESQL, [SINGERS, nameless])


@pytest.mark.parametrize("definition", [replace(GOOD, watches_everything=True), GOOD])
def test_a_stream_that_watches_the_partition_table_is_refused(definition: StreamDefinition) -> None:
    tables = [SINGERS, replace(SINGERS, name="partitions")]
    with pytest.raises(MisconfiguredError, match="PARTITION_DATABASE"):
        check_partition_table("s", tables, definition, table="partitions", same_database=True)
    check_partition_table("s", tables, definition, table="partitions", same_database=False)
    check_partition_table("s", [SINGERS], GOOD, table="partitions", same_database=True)


def test_a_start_older_than_the_retention_is_refused_with_the_range_that_is_allowed() -> None:
    with pytest.raises(MisconfiguredError, match=r"between 2026-11-20T12:00:00Z .* and 2026-11-21T12:00:00Z"):
        check_times(GOOD, start=parse_timestamp("2026-11-20T11:59:59Z"), end=None, now=NOW)
    check_times(GOOD, start=parse_timestamp("2026-11-20T12:00:01Z"), end=None, now=NOW)


def test_a_start_to_come_and_an_end_before_the_start_are_refused() -> None:
    with pytest.raises(MisconfiguredError, match="is in the future"):
        check_times(GOOD, start=Nanoseconds(NOW + 1), end=None, now=NOW)
    with pytest.raises(MisconfiguredError, match="before the start"):
        check_times(GOOD, start=NOW, end=Nanoseconds(NOW - 1), now=NOW)
    check_times(GOOD, start=NOW, end=NOW, now=NOW)


@pytest.mark.parametrize(
    ("spanner_type", "name"),
    [
        ("STRING(64)", "STRING"),
        ("BYTES(MAX)", "BYTES"),
        ("INT64", "INT64"),
        ("ARRAY<STRING(MAX)>", "ARRAY<STRING>"),
        ("ARRAY<FLOAT32>(vector_length=>3)", "ARRAY<FLOAT32>"),
        ("PROTO<examples.shipping.Order>", "PROTO"),
        ("ENUM<examples.shipping.State>", "ENUM"),
        ("ARRAY<PROTO<examples.shipping.Order>>", "ARRAY<PROTO>"),
        ("`app.User`", "`app.User`"),  # as the emulator has it in both places
    ],
)
def test_a_column_of_the_schema_has_the_type_that_its_records_have(spanner_type: str, name: str) -> None:
    assert googlesql_type(type_json(spanner_type)) == name


@pytest.mark.parametrize(
    ("spanner_type", "name"),
    [
        ("boolean", "BOOL"),
        ("bigint", "INT64"),
        ("oid", "INT64"),
        ("double precision", "FLOAT64"),
        ("real", "FLOAT32"),
        ("numeric", "PG_NUMERIC"),
        ("character varying", "STRING"),
        ("character varying(20)", "STRING"),
        ("text", "STRING"),
        ("bytea", "BYTES"),
        ("date", "DATE"),
        ("timestamp with time zone", "TIMESTAMP"),
        ("spanner.commit_timestamp", "TIMESTAMP"),
        ("jsonb", "JSON"),
        ("uuid", "UUID"),
        ("interval", "INTERVAL"),
        ("character varying(20)[]", "ARRAY<STRING>"),
        ("numeric[]", "ARRAY<PG_NUMERIC>"),
        ("double precision[] vector length 3", "ARRAY<FLOAT64>"),
        ("something new", "something new"),
    ],
)
def test_a_column_of_a_postgresql_schema_has_the_type_that_its_records_have(spanner_type: str, name: str) -> None:
    assert googlesql_type(type_json(spanner_type, Dialect.POSTGRESQL)) == name


def test_what_is_refused_in_postgresql_is_fixed_by_postgresqls_statements() -> None:
    stream = replace(GOOD, dialect=Dialect.POSTGRESQL)
    with pytest.raises(MisconfiguredError) as error:
        check_stream("orders", replace(stream, exclusions=frozenset({"exclude_insert"})))
    assert "ALTER CHANGE STREAM orders SET (exclude_insert = false)" in str(error.value)
    fix = "ALTER CHANGE STREAM orders SET (value_capture_type = 'NEW_ROW')"
    assert whole_rows("orders", replace(stream, value_capture_type="NEW_VALUES")) == fix
    with pytest.raises(MisconfiguredError) as error:
        check_stream("Orders", replace(stream, exclusions=frozenset({"exclude_insert", "exclude_delete"})))
    assert 'ALTER CHANGE STREAM "Orders" SET (exclude_delete = false, exclude_insert = false)' in str(error.value)
    check_stream("orders", stream)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (exceptions.ServiceUnavailable, ""),
        (exceptions.Cancelled, ""),
        (exceptions.DeadlineExceeded, ""),
        (exceptions.InternalServerError, ""),
        (exceptions.Aborted, ""),
        (exceptions.NotFound, "Session not found: projects/p"),
    ],
)
def test_an_error_that_may_pass_is_transient(kind: Callable[[str], Exception], message: str) -> None:
    with pytest.raises(TransientError, match="read"), spanner_errors("read"):
        raise kind(message)


@pytest.mark.parametrize(
    "kind",
    [exceptions.OutOfRange, exceptions.InvalidArgument, exceptions.NotFound, exceptions.PermissionDenied],
)
def test_what_only_a_person_can_fix_is_misconfigured(kind: Callable[[str], Exception]) -> None:
    with pytest.raises(MisconfiguredError, match="read"), spanner_errors("read"):
        raise kind("database not found")


@pytest.mark.parametrize("what", ["Database", "Instance"])
def test_what_is_not_there_is_answered_with_the_settings_that_name_it(what: str) -> None:
    message = rf"{what} not found: projects/p\. Are GOOGLE_CLOUD_PROJECT.* and SPANNER_{what.upper()} right"
    with pytest.raises(MisconfiguredError, match=message), spanner_errors("read"):
        raise exceptions.NotFound(f"{what} not found: projects/p")  # type: ignore[no-untyped-call]


def test_what_is_unknown_passes_through() -> None:
    unknown: Callable[[str], Exception] = exceptions.DataLoss
    with pytest.raises(exceptions.DataLoss), spanner_errors("read"):
        raise unknown("x")
