"""Which DDL changes data without records: each case by itself, and a model of a database and its mirror."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.core.shapes import (
    DROPPED_UNSEEN,
    ColumnShape,
    Finding,
    Kind,
    Look,
    Mark,
    Sighting,
    TableShape,
    added_again,
    compare,
    excluding,
    synced,
)
from shared.contracts.timestamps import Nanoseconds

THEN, NOW = Nanoseconds(1_000), Nanoseconds(2_000)
ID = ColumnShape("Id", "INT64", is_key=True)
NAME, BORN = ColumnShape("Name", "STRING"), ColumnShape("Born", "DATE")
SINGERS = TableShape((ID, NAME, BORN))


def found(old: Look, new: Look, *sightings: Sighting) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return kinds and columns by table, after the first look has been remembered."""
    findings = compare(compare(None, old).remembered, new, sightings).findings
    assert all((one.after, one.before) == (THEN, NOW) for one in findings)
    return {(one.table, one.kind.value): one.columns for one in findings}


def a_look(at: Nanoseconds = NOW, *, everything: bool = False, **tables: TableShape) -> Look:
    return Look(at, everything, tables)


def of_singers(now: TableShape, before: TableShape = SINGERS) -> Mapping[str, Sequence[str]]:
    pairs = found(a_look(THEN, Singers=before), a_look(Singers=now))
    return {kind: columns for (_table, kind), columns in pairs.items()}


def test_the_first_look_finds_nothing() -> None:
    assert compare(None, a_look(Singers=SINGERS)).findings == ()


def test_what_stays_as_it_is_and_what_old_rows_have_no_value_of_need_no_resync() -> None:
    assert of_singers(SINGERS) == {}
    assert of_singers(replace(SINGERS, columns=(*SINGERS.columns, ColumnShape("Age", "INT64")))) == {}
    assert of_singers(replace(SINGERS, columns=(ID, NAME))) == {}
    with_default = replace(NAME, has_default=True)  # a default that is set later changes no row
    assert of_singers(replace(SINGERS, columns=(ID, with_default, BORN))) == {}


@pytest.mark.parametrize(
    ("columns", "kind", "named"),
    [
        ((ID, NAME, BORN, ColumnShape("Age", "INT64", has_default=True)), Kind.COLUMN_DEFAULTED, ("Age",)),
        ((ID, BORN, NAME), Kind.COLUMN_AGAIN, ("Name",)),
        ((ID, NAME, ColumnShape("Age", "INT64"), BORN), Kind.COLUMN_AGAIN, ("Born",)),
        ((ID, NAME, replace(BORN, type="TIMESTAMP")), Kind.COLUMN_RETYPED, ("Born",)),
        ((replace(ID, type="STRING"), NAME, BORN), Kind.TABLE_AGAIN, ()),
        ((ID, replace(NAME, is_key=True), BORN), Kind.TABLE_AGAIN, ()),
    ],
)
def test_columns_that_change_data_without_records(
    columns: tuple[ColumnShape, ...], kind: Kind, named: Sequence[str]
) -> None:
    assert of_singers(TableShape(columns)) == {kind: named}


def test_a_column_that_the_stream_takes_up_later_needs_its_old_values() -> None:
    hidden = replace(SINGERS, columns=(ID, NAME, replace(BORN, watched=False)))
    assert of_singers(SINGERS, hidden) == {Kind.COLUMN_WATCHED: ("Born",)}
    assert of_singers(hidden) == {}


def test_a_column_gone_at_one_look_and_there_at_the_next_was_added_again_whatever_its_place() -> None:
    first = compare(None, a_look(THEN, Singers=SINGERS)).remembered
    without = compare(first, a_look(Nanoseconds(1_500), Singers=TableShape((ID, NAME))))
    assert without.findings == ()
    again = compare(without.remembered, a_look(NOW, Singers=SINGERS)).findings
    assert [(one.kind, one.columns, one.after) for one in again] == [(Kind.COLUMN_AGAIN, ("Born",), 1_500)]


def test_a_record_without_a_column_shows_what_both_looks_hide() -> None:
    old, new = a_look(THEN, Singers=SINGERS), a_look(Singers=SINGERS)
    without = (ID, NAME)
    assert found(old, new, Sighting("Singers", without, Nanoseconds(1_500))) == {
        ("Singers", Kind.COLUMN_AGAIN): ("Born",)
    }
    assert found(old, new, Sighting("Singers", without, THEN)) == {}  # a record of an older list: read late
    assert found(old, new, Sighting("Singers", (*without, BORN), Nanoseconds(1_500))) == {}


def test_a_new_table_is_whole_only_where_the_stream_watches_everything_all_along() -> None:
    for before, after in ((True, True), (True, False), (False, True), (False, False)):
        old, new = a_look(THEN, everything=before), a_look(everything=after, Singers=SINGERS)
        expected = {} if before and after else {("Singers", Kind.TABLE_WATCHED): ()}
        assert found(old, new) == expected


def test_a_new_table_with_the_key_of_one_that_vanished_may_be_that_one_with_its_rows() -> None:
    old = a_look(THEN, everything=True, Singers=SINGERS)
    assert found(old, a_look(everything=True, Artists=SINGERS)) == {("Artists", Kind.TABLE_RENAMED): ()}
    other = TableShape((replace(ID, type="STRING"),))
    assert found(old, a_look(everything=True, Artists=other)) == {}


def test_a_table_taken_out_of_the_stream_is_named_and_needs_a_resync_when_it_comes_back() -> None:
    first = compare(None, a_look(THEN, Singers=SINGERS)).remembered
    out = compare(first, a_look(Nanoseconds(1_500), Singers=replace(SINGERS, watched=False)))
    assert (out.left, out.findings) == (("Singers",), ())
    back = compare(out.remembered, a_look(NOW, Singers=SINGERS))
    assert [one.kind for one in back.findings] == [Kind.TABLE_WATCHED]


def test_a_table_dropped_is_named_and_one_made_under_its_name_needs_a_resync() -> None:
    first = compare(None, a_look(THEN, everything=True, Singers=SINGERS)).remembered
    gone = compare(first, a_look(Nanoseconds(1_500), everything=True))
    assert (gone.left, gone.findings) == (("Singers",), ())
    assert compare(gone.remembered, a_look(NOW, everything=True)).left == ()  # once
    again = compare(gone.remembered, a_look(NOW, everything=True, Singers=SINGERS))
    assert [one.kind for one in again.findings] == [Kind.TABLE_AGAIN]


def test_a_table_that_went_while_it_was_left_out_is_remembered_all_the_same() -> None:
    remembered = compare(None, a_look(THEN, everything=True, Singers=SINGERS)).remembered
    for look in (a_look(Nanoseconds(1_200), everything=True, Singers=replace(SINGERS, watched=False)),) * 2:
        remembered = compare(remembered, look).remembered
    remembered = compare(remembered, a_look(Nanoseconds(1_500), everything=True)).remembered
    again = compare(remembered, a_look(NOW, everything=True, Singers=SINGERS))
    assert [one.kind for one in again.findings] == [Kind.TABLE_AGAIN]


def test_after_a_resync_nothing_of_the_past_is_held_against_a_table() -> None:
    first = compare(None, a_look(THEN, Singers=SINGERS)).remembered
    without = compare(first, a_look(Nanoseconds(1_500), Singers=TableShape((ID, NAME)))).remembered
    forgiven = synced(without.tables["Singers"])
    assert forgiven is not None
    assert compare(replace(without, tables={"Singers": forgiven}), a_look(NOW, Singers=SINGERS)).findings == ()
    assert synced(replace(SINGERS, gone=True)) is None


def test_a_mark_says_since_when_and_from_when_a_copy_mends_it() -> None:
    one = Finding("T", Kind.COLUMN_AGAIN, Nanoseconds(10), Nanoseconds(20), ("a",))
    two = Finding("T", Kind.TABLE_AGAIN, Nanoseconds(30), Nanoseconds(40))
    mark = Mark("T", (one,)).with_more([two, replace(one, after=Nanoseconds(50), before=Nanoseconds(60))])
    assert len(mark.findings) == 2
    assert (mark.since, mark.sync_after) == (10, 60)


def test_a_table_that_the_tables_file_lets_in_is_marked_until_nobody_can_drop_changes_of_it_any_more() -> None:
    hidden = excluding(a_look(THEN, everything=True, Singers=SINGERS), lambda _table: False)
    (found,) = compare(compare(None, hidden).remembered, a_look(everything=True, Singers=SINGERS)).findings
    assert (found.kind, found.before, found.dropped_until) == (Kind.TABLE_WATCHED, NOW, NOW + DROPPED_UNSEEN)
    mark = Mark("Singers", (found,)).with_more([replace(found, before=Nanoseconds(NOW + 5), dropped_until=THEN)])
    assert mark.sync_after == NOW + DROPPED_UNSEEN
    unwatched = a_look(THEN, everything=True, Singers=replace(SINGERS, watched=False))
    (taken_up,) = compare(compare(None, unwatched).remembered, a_look(everything=True, Singers=SINGERS)).findings
    assert Mark("Singers", (taken_up,)).sync_after == NOW, "what a stream has not watched nobody drops"


def before_the_first_look(now: TableShape, *columns: Sequence[ColumnShape], everything: bool = True) -> object:
    """Return what records from before any look tell, each with the columns of its time, in the order of commits."""
    sightings = [Sighting("Singers", tuple(each), Nanoseconds(100 + at)) for at, each in enumerate(columns)]
    first = compare(None, a_look(THEN, everything=everything, Singers=now), sightings)
    later = compare(compare(None, a_look(THEN, everything=everything, Singers=now)).remembered, a_look(), sightings)
    assert first.findings == later.findings
    return {one.kind: one.columns for one in first.findings}


AGE, WITH_DEFAULT = ColumnShape("Age", "INT64"), ColumnShape("Age", "INT64", has_default=True)


@pytest.mark.parametrize(
    ("now", "columns", "expected"),
    [
        ((ID, NAME, BORN), [(ID, NAME, BORN)], {}),
        ((ID, NAME, BORN, AGE), [(ID, NAME, BORN)], {}),
        ((ID, NAME), [(ID, NAME, BORN)], {}),
        ((ID, NAME, BORN, WITH_DEFAULT), [(ID, NAME, BORN)], {Kind.COLUMN_DEFAULTED: ("Age",)}),
        ((ID, NAME, BORN, WITH_DEFAULT), [(ID, NAME, BORN, AGE)], {}),
        ((ID, NAME, WITH_DEFAULT), [(ID, NAME), (ID, NAME, AGE)], {Kind.COLUMN_DEFAULTED: ("Age",)}),
        ((ID, BORN, NAME), [(ID, NAME, BORN)], {Kind.COLUMN_AGAIN: ("Name",)}),
        ((ID, NAME, BORN), [(ID, NAME, BORN), (ID, NAME)], {Kind.COLUMN_AGAIN: ("Born",)}),
        ((ID, NAME, BORN), [(ID, NAME, replace(BORN, type="STRING"))], {Kind.COLUMN_RETYPED: ("Born",)}),
        ((ID, NAME, BORN), [(ID, NAME, AGE), (ID, NAME)], {}),
        ((ID, NAME, BORN), [(replace(ID, type="STRING"), NAME)], {Kind.TABLE_AGAIN: ()}),
    ],
)
def test_records_from_before_the_first_look_tell_what_has_changed_until_then(
    now: Sequence[ColumnShape], columns: Sequence[Sequence[ColumnShape]], expected: Mapping[Kind, Sequence[str]]
) -> None:
    assert before_the_first_look(TableShape(tuple(now)), *columns) == expected


def test_where_the_stream_names_columns_one_that_was_in_no_record_was_not_watched() -> None:
    some = TableShape((ID, replace(NAME, watched=False), BORN, AGE))
    assert before_the_first_look(some, (ID, BORN, AGE), everything=False) == {}
    assert before_the_first_look(some, (ID, BORN), everything=False) == {Kind.COLUMN_WATCHED: ("Age",)}


def test_records_of_later_on_are_not_compared_so_nor_those_of_tables_that_are_gone_or_left_out() -> None:
    first = compare(None, a_look(THEN, everything=True, Singers=SINGERS)).remembered
    second = compare(first, a_look(Nanoseconds(1_200), everything=True, Singers=SINGERS)).remembered
    third = compare(second, a_look(Nanoseconds(1_800), everything=True, Singers=SINGERS)).remembered
    assert [one.compared_since for one in (first, second, third)] == [None, 1_200, 1_200]
    retyped = Sighting("Singers", (ID, NAME, replace(BORN, type="STRING")), Nanoseconds(1_300))
    assert compare(third, a_look(everything=True, Singers=SINGERS), [retyped]).findings == ()
    early = replace(retyped, at=Nanoseconds(1_100))
    assert len(compare(third, a_look(everything=True, Singers=SINGERS), [early]).findings) == 1
    for tables in ({}, {"Singers": replace(SINGERS, watched=False)}):
        assert compare(None, a_look(THEN, everything=True, **tables), [early]).findings == ()


# A model: a database with its rows, the mirror that its change records make, and a look after every statement.

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
        some = None if self.everything else table.listed
        columns = tuple(replace(c, watched=c.is_key or some is None or c.name in some) for c in table.columns)
        return TableShape(columns, watched)

    def look(self, at: int) -> Look:
        return Look(Nanoseconds(at), self.everything, {name: self.shape(name) for name in self.tables})

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
            case "add" | "add with default" if there is None:
                has_default = operation == "add with default"
                table.columns.append(ColumnShape(column, "INT64", has_default=has_default))
                for row in table.rows.values():
                    row[column] = ("INT64", 0) if has_default else None
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
        """Tell whether the mirror of a watched table is not equal to it."""
        names = self.shape(name).watched_names
        rows = {key: {c: row[c] for c in names} for key, row in self.tables[name].rows.items()}
        held = {key: {c: row.get(c) for c in names} for key, row in self.mirror.get(name, {}).items()}
        return rows != held


STATEMENTS = (
    "create", "drop", "rename", "watch", "watch some", "unwatch", "add", "add with default", "retype", "drop column",
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


@settings(max_examples=400)
@given(everything=st.booleans(), steps=steps)
def test_with_a_look_after_every_statement_no_table_differs_from_its_mirror_unmarked(
    everything: bool, steps: list[tuple[str, str, str, int]]
) -> None:
    model = Model(everything=everything)
    remembered = compare(None, model.look(0)).remembered
    marked: set[str] = set()
    for number, step in enumerate(steps, 1):
        model.do(*step)
        if step[0] != "write":
            comparison = compare(remembered, model.look(number))
            remembered = comparison.remembered
            marked |= {one.table for one in comparison.findings}
    watched = [name for name in model.tables if model.shape(name).watched]
    assert [name for name in watched if model.differs(name) and name not in marked] == []


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add with default", "retype", "drop column"]),
            st.sampled_from(COLUMN_NAMES),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_with_a_record_after_every_statement_and_one_look_at_the_end_no_table_differs_from_its_mirror_unmarked(
    steps: list[tuple[str, str, bool]],
) -> None:
    model = Model(everything=True)
    model.do("create", "T", "", 0)
    sightings = []
    for number, (operation, column, other) in enumerate([("write", "", False), *steps]):
        model.do(operation, "T", column, 0)
        model.do("write", "T", "", 1 + other)
        seen = [replace(one, has_default=False) for one in model.tables["T"].columns]
        sightings.append(Sighting("T", tuple(seen), Nanoseconds(number)))
    comparison = compare(None, model.look(1_000), sightings[::-1])
    assert comparison.findings or not model.differs("T")
    if all(operation in ("add", "drop column") for operation, _column, _other in steps):
        added = [column for operation, column, _other in steps if operation == "add"]
        assert not comparison.findings or len(added) > len(set(added))


@given(steps=steps)
def test_writes_and_statements_about_other_tables_mark_no_table(steps: list[tuple[str, str, str, int]]) -> None:
    model = Model(everything=True)
    model.do("create", "T", "", 1)
    remembered = compare(None, model.look(0)).remembered
    for number, (operation, table, column, key) in enumerate(steps, 1):
        if (table == "U" and operation != "rename") or operation == "write":
            model.do(operation, table, column, key)
            comparison = compare(remembered, model.look(number))
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
