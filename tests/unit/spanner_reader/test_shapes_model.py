"""Which DDL changes data without records: a model of a database, of the mirror of its records, and of looks."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.core.schema.shapes import (
    ColumnShape,
    SchemaInspection,
    SchemaObservation,
    TableShape,
    added_again,
    compare,
)
from shared.contracts.timestamps import Nanoseconds
from tests.seeds import examples

ID = ColumnShape("Id", "INT64", is_key=True)
COLUMN_NAMES, TABLE_NAMES = ("a", "b", "c"), ("T", "U")


@dataclass
class ModelTable:
    columns: list[ColumnShape] = field(default_factory=lambda: [ID])
    rows: dict[int, dict[str, object]] = field(default_factory=dict)
    listed: frozenset[str] | None = frozenset()
    """Which columns the stream names; None for all; ignored by a stream of everything."""


class Model:
    """Two names of tables, a stream, and what a mirror of its records holds."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self.tables: dict[str, ModelTable] = {}
        self.watched: set[str] = set()
        self.mirror: dict[str, dict[int, dict[str, object]]] = {}
        self.writes = 0

    def shape(self, name: str) -> TableShape:
        table, watched = self.tables[name], self.everything or name in self.watched
        if not watched:  # a look reads no columns then
            return TableShape((), watched=False)
        some = None if self.everything else table.listed
        columns = tuple(replace(c, watched=c.is_key or some is None or c.name in some) for c in table.columns)
        return TableShape(columns, watched)

    def inspect(self, at: int) -> SchemaInspection:
        return SchemaInspection(Nanoseconds(at), self.everything, {name: self.shape(name) for name in self.tables})

    def do(self, operation: str, name: str, column: str, key: int) -> None:
        table = self.tables.get(name)
        if operation == "create" and table is None:
            self.tables[name] = ModelTable()
        elif table is None:
            return
        elif operation == "write":
            self.writes += 1
            row = table.rows[key] = {c.name: (c.type, self.writes) for c in table.columns}
            shape = self.shape(name)
            if shape.watched:
                mirrored = {c: row[c] for c in shape.watched_names}
                self.mirror.setdefault(name, {})[key] = mirrored
        else:
            self._alter(operation, name, table, column)

    def _alter(self, operation: str, name: str, table: ModelTable, column: str) -> None:
        there = next((c for c in table.columns if c.name == column), None)
        match operation:
            case "drop":
                del self.tables[name]
                self.watched.discard(name)
            case "rename":
                (other,) = set(TABLE_NAMES) - {name}
                if other not in self.tables:
                    self.tables[other] = self.tables.pop(name)
                    if name in self.watched:
                        self.watched.remove(name)
                        self.watched.add(other)
            case "watch":
                self.watched.add(name)
                table.listed = None
            case "watch some":
                self.watched.add(name)
                table.listed = frozenset({column})
            case "unwatch":
                self.watched.discard(name)
            case "add" | "add with default" | "add not null, drop default" if there is None:
                has_default, nullable = operation == "add with default", not operation.startswith("add not null")
                table.columns.append(ColumnShape(column, "INT64", has_default=has_default, nullable=nullable))
                for row in table.rows.values():
                    row[column] = None if operation == "add" else ("INT64", 0)
            case "retype" if there is not None:
                table.columns[table.columns.index(there)] = replace(
                    there, type="BYTES" if there.type == "STRING" else "STRING"
                )
                for row in table.rows.values():
                    row[column] = ("retyped", row[column])
            case "drop column" if there is not None:
                table.columns.remove(there)
                for row in table.rows.values():
                    del row[column]
            case _:
                pass

    def differs(self, name: str) -> bool:
        """Return whether the mirror of a watched table is not equal to it."""
        names = self.shape(name).watched_names
        rows = {key: {c: row[c] for c in names} for key, row in self.tables[name].rows.items()}
        mirrored = {key: {c: row.get(c) for c in names} for key, row in self.mirror.get(name, {}).items()}
        return rows != mirrored


STATEMENTS = (
    "create", "drop", "rename", "watch", "watch some", "unwatch", "add", "add with default", "retype", "drop column",
    "add not null, drop default",
)  # fmt: skip
steps = st.lists(
    st.tuples(
        st.sampled_from([*STATEMENTS, "write", "write", "write"]),
        st.sampled_from(TABLE_NAMES),
        st.sampled_from(COLUMN_NAMES),
        st.integers(1, 3),
    ),
    max_size=40,
)


@settings(max_examples=examples(400))
@given(everything=st.booleans(), steps=steps)
def test_with_an_inspection_after_every_statement_every_table_that_differs_from_its_mirror_is_found(
    everything: bool, steps: list[tuple[str, str, str, int]]
) -> None:
    model = Model(everything=everything)
    remembered = compare(None, model.inspect(0)).remembered
    requested: set[str] = set()
    for number, step in enumerate(steps, 1):
        model.do(*step)
        if step[0] != "write":
            comparison = compare(remembered, model.inspect(number))
            remembered = comparison.remembered
            requested |= {one.table for one in comparison.findings}
    watched = [name for name in model.tables if model.shape(name).watched]
    assert [name for name in watched if model.differs(name) and name not in requested] == []


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add with default", "add not null, drop default", "retype", "drop column"]),
            st.sampled_from(COLUMN_NAMES),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_with_a_record_after_every_statement_one_inspection_finds_every_table_that_differs_from_its_mirror(
    steps: list[tuple[str, str, bool]],
) -> None:
    model = Model(everything=True)
    model.do("create", "T", "", 0)
    observations = []
    for number, (operation, column, other) in enumerate([("write", "", False), *steps]):
        model.do(operation, "T", column, 0)
        model.do("write", "T", "", 1 + other)
        seen = [replace(one, has_default=False) for one in model.tables["T"].columns]
        observations.append(SchemaObservation("T", tuple(seen), Nanoseconds(number)))
    comparison = compare(None, model.inspect(1_000), observations[::-1])
    assert comparison.findings or not model.differs("T")
    if all(operation in ("add", "drop column") for operation, _column, _other in steps):
        added = [column for operation, column, _other in steps if operation == "add"]
        assert not comparison.findings or len(added) > len(set(added))


@settings(max_examples=examples(300))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "drop column"]),
            st.sampled_from(COLUMN_NAMES[:2]),
            st.booleans(),
            st.booleans(),
            st.sampled_from([0, 3]),
        ),
        max_size=15,
    )
)
def test_records_read_late_show_what_inspections_hide_and_find_nothing_where_columns_are_only_added(
    steps: list[tuple[str, str, bool, bool, int]],
) -> None:
    """Of columns that a look has had before they are dropped."""
    model = Model(everything=True)
    model.do("create", "T", "", 0)
    remembered = compare(compare(None, model.inspect(0)).remembered, model.inspect(1)).remembered
    on_their_way: list[tuple[int, SchemaObservation]] = []
    requested = False
    for number, (operation, column, other, inspects, late) in enumerate([("write", "", False, False, 0), *steps], 1):
        if operation != "drop column" or column in remembered.tables["T"].watched_names:
            model.do(operation, "T", column, 0)
        model.do("write", "T", "", 1 + other)
        written = SchemaObservation("T", tuple(model.tables["T"].columns), Nanoseconds(10 * number))
        on_their_way.append((number + late, written))
        if inspects or number == len(steps) + 1:
            arrived = [seen for when, seen in on_their_way if when <= number or number == len(steps) + 1]
            on_their_way = [(when, seen) for when, seen in on_their_way if when > number]
            comparison = compare(remembered, model.inspect(10 * number + 5), arrived)
            remembered = comparison.remembered
            requested = requested or bool(comparison.findings)
    assert requested or not model.differs("T")
    added = [column for operation, column, *_rest in steps if operation == "add"]
    dropped = {column for operation, column, *_rest in steps if operation == "drop column"}
    assert not requested or dropped & set(added)


@given(steps=steps)
def test_writes_and_statements_about_other_tables_request_a_resync_of_no_table(
    steps: list[tuple[str, str, str, int]],
) -> None:
    model = Model(everything=True)
    model.do("create", "T", "", 1)
    remembered = compare(None, model.inspect(0)).remembered
    for number, (operation, table, column, key) in enumerate(steps, 1):
        if (table == "U" and operation != "rename") or operation == "write":
            model.do(operation, table, column, key)
            comparison = compare(remembered, model.inspect(number))
            remembered = comparison.remembered
            assert [one for one in comparison.findings if one.table == "T"] == []


@given(
    before=st.lists(st.sampled_from("abcdef"), unique=True),
    statements=st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef"))),
)
def test_no_column_that_stayed_is_ever_taken_for_one_that_was_added_again(
    before: list[str], statements: list[tuple[bool, str]]
) -> None:
    now, stayed = list(before), set(before)
    for drop, name in statements:
        if drop and name in now:
            now.remove(name)
            stayed.discard(name)
        elif not drop and name not in now:
            now.append(name)
    assert added_again(before, now).isdisjoint(stayed)
    assert added_again(before, now) <= set(before) & set(now)
