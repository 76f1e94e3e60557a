"""What a doctor says of tables, which has to be what the consumer makes of them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.core.schema.history import history_definition
from services.cdc_consumer.core.schema.tables import source_columns
from services.cdc_consumer.core.types.types import COLUMN_TYPES
from services.spanner_reader.adapters.doctor.table_inspection import MIRRORED_TYPES, inspect_soft_delete, inspect_table
from services.spanner_reader.adapters.schema.catalog import StreamDefinition
from services.spanner_reader.core.schema.shapes import ColumnShape, TableShape
from shared.contracts.change_batch import Column, Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.tables_file import TablesFile, read_tables_file
from shared.runtime.findings import Finding, Level

ID = ColumnShape("id", "INT64", is_key=True, nullable=False)
BOTH, HISTORY = 'mode = "both"', 'mode = "history"'
STREAM = StreamDefinition(
    watches_everything=True,
    value_capture_type="NEW_ROW",
    partition_mode="IMMUTABLE_KEY_RANGE",
    retention=timedelta(days=7),
)


def columns(*names: str) -> Sequence[ColumnShape]:
    return [ColumnShape(name, "INT64") for name in names]


def many(count: int) -> TableShape:
    """Return a table of so many columns, its key among them."""
    return TableShape((ID, *columns(*(f"c{n}" for n in range(count - 1)))))


def the_file(options: str) -> TablesFile:
    return read_tables_file(f"[tables.t]\n{options}\n")


def wrong(table: TableShape, options: str = "") -> list[Finding]:
    """Return what is not right, after asking the consumer whether it agrees."""
    file = the_file(options)
    found = [one for one in inspect_table("t", table, "leave it out", file.options("t")) if one.level is not Level.OK]
    assert any(one.level is Level.ERROR for one in found) == _is_poison(table, file)
    return found


def _is_poison(table: TableShape, file: TablesFile) -> bool:
    key = tuple(name for name, _kind in table.key)
    header = Header("//spanner/s", "t", key, tuple(Column(each.name, each.type) for each in table.columns))
    try:
        destinations(header, Plan(file))
    except PoisonRecordError:
        return True
    return False


@pytest.mark.parametrize(
    ("table", "options", "what"),
    [
        (TableShape(()), "", "key"),
        (TableShape(tuple(replace(ID, name=f"k{n}") for n in range(17))), "", "key"),
        (TableShape((replace(ID, type="TIME"),)), "", "types"),
        (TableShape((ID, *columns("_partitioned"))), "", "names"),
        (TableShape((ID, *columns("_Millrace_x"))), "", "names"),
        (TableShape((replace(ID, name="_CHANGE_TYPE"),)), "", "names"),
        (TableShape((ID, *columns("A", "a"))), "", "names"),
        (TableShape((ID, *columns("valid_to"))), BOTH, "names in a history"),
        (TableShape((ID, *columns("Is_Current"))), HISTORY, "names in a history"),
        (TableShape((ID, *columns("_metadata_spanner_mod_type"))), HISTORY, "names in a history"),
        (many(1_999), "", "columns"),
        (many(1_998), "soft_delete = true", "columns"),
        (many(1_987), BOTH, "columns"),
        (many(1_987), HISTORY, "columns"),
    ],
)
def test_tables_that_bigquery_cannot_have_are_named(table: TableShape, options: str, what: str) -> None:
    (found,) = wrong(table, options)
    assert (found.level, found.check) == (Level.ERROR, f"table t: {what}")


@pytest.mark.parametrize(
    ("table", "options"),
    [
        (many(1_998), ""),
        (many(1_997), "soft_delete = true"),
        (many(1_986), BOTH),
        (many(1_986), f"{HISTORY}\nsoft_delete = true"),
        (many(1_999), 'ignored_columns = ["C7"]'),
        (TableShape((ID, ColumnShape("i", "TOKENLIST"))), 'ignored_columns = ["I"]'),
        (TableShape((ID, *columns("_table_x"))), 'ignored_columns = ["_TABLE_X"]'),
        (TableShape((ID, *columns("A", "a"))), 'ignored_columns = ["a"]'),
        (TableShape((replace(ID, type="TIME"),)), HISTORY),
        (TableShape(tuple(replace(ID, name=f"k{n}") for n in range(17))), HISTORY),
        (TableShape((ID, *columns("valid_from"))), ""),
        (TableShape((ID, *columns("valid_from"))), f'{HISTORY}\nignored_columns = ["valid_from"]'),
    ],
)
def test_what_fits_or_is_ignored_brings_no_finding(table: TableShape, options: str) -> None:
    assert wrong(table, options) == []


@pytest.mark.parametrize("kind", ["TOKENLIST", "ARRAY<TOKENLIST>", "`app.User`"])
def test_a_column_whose_type_is_not_known_is_warned_of(kind: str) -> None:
    (found,) = wrong(TableShape((ID, ColumnShape("i", kind))))
    assert (found.level, found.check) == (Level.WARNING, "table t: types")
    assert f"i {kind}: this version does not know the type, and writes the text of its values" in found.detail


UNFIT = 'unfit_key = "history"'


@pytest.mark.parametrize(
    "table",
    [TableShape((replace(ID, type="TIME"),)), TableShape(tuple(replace(ID, name=f"k{n}") for n in range(17)))],
)
@pytest.mark.parametrize("mode", ["", BOTH])
def test_a_table_whose_key_does_not_fit_is_warned_of_where_a_history_is_kept_of_it_instead(
    table: TableShape, mode: str
) -> None:
    (refused,) = wrong(table, mode)
    assert "unfit_key" in refused.fix
    (found,) = wrong(table, f"{UNFIT}\n{mode}")
    assert (found.level, found.check) == (Level.WARNING, "table t: key")
    assert "no mirror" in found.detail
    of_a_history = replace(table, columns=(*table.columns, *columns("valid_to")))
    assert [one.level for one in wrong(of_a_history, f"{UNFIT}\n{mode}")] == [Level.WARNING, Level.ERROR]


def test_to_ignore_a_column_is_named_as_a_fix_where_it_is_one() -> None:
    (found,) = wrong(TableShape((ID, ColumnShape("i", "TOKENLIST"))))
    assert "name i in the table's ignored_columns" in found.fix
    assert "leave it out" in found.fix
    (found,) = wrong(TableShape((ID, *columns("_FILE_x"))))
    assert "name _FILE_x in the table's ignored_columns" in found.fix
    (found,) = wrong(TableShape((replace(ID, name="_FILE_x"),)))
    assert "ignored_columns" not in found.fix


def test_the_types_that_are_known_are_those_of_the_consumer() -> None:
    arrays = {f"ARRAY<{kind}>" for kind in MIRRORED_TYPES}
    assert set(COLUMN_TYPES) == MIRRORED_TYPES | arrays
    for kind in COLUMN_TYPES:
        assert wrong(TableShape((ID, ColumnShape("c", kind)))) == []


def test_every_column_of_a_history_is_known() -> None:
    header = Header("//spanner/s", "t", ("id",), (Column("id", "INT64"),))
    of_its_own = history_definition(header, "t", source_columns(header), "").columns[1:]
    for column in of_its_own:
        (*_others, found) = wrong(TableShape((ID, *columns(column.name))), HISTORY)
        assert found.check == "table t: names in a history"


def test_a_soft_delete_without_old_values_is_warned_of() -> None:
    soft = the_file("soft_delete = true").options("t")
    (found,) = inspect_soft_delete("t", soft, "s", STREAM)
    assert (found.level, found.check) == (Level.WARNING, "table t: soft_delete")
    assert "ALTER CHANGE STREAM s SET OPTIONS (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')" in found.fix
    whole = replace(STREAM, value_capture_type="NEW_ROW_AND_OLD_VALUES")
    assert list(inspect_soft_delete("t", soft, "s", whole)) == []
    for options in ("", f"{HISTORY}\nsoft_delete = true"):
        assert list(inspect_soft_delete("t", the_file(options).options("t"), "s", STREAM)) == []
