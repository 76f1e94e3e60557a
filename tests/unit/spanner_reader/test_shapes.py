"""Which DDL changes data without records: each case by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from services.spanner_reader.core.schema.shapes import (
    COLUMNS_UNSEEN,
    DROPPED_UNSEEN,
    ColumnShape,
    SchemaComparison,
    SchemaInspection,
    SchemaObservation,
    SpannerResyncCause,
    SpannerResyncKind,
    SpannerResyncRequest,
    TableShape,
    compare,
    excluding,
    synced,
)
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds

THEN, BETWEEN, NOW = Nanoseconds(1_000), Nanoseconds(1_500), Nanoseconds(2_000)
ID = ColumnShape("Id", "INT64", is_key=True)
NAME, BORN = ColumnShape("Name", "STRING"), ColumnShape("Born", "DATE")
SINGERS = TableShape((ID, NAME, BORN))


def found(
    old: SchemaInspection, new: SchemaInspection, *observations: SchemaObservation
) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return kinds and columns by table, after the first look has been remembered."""
    findings = compare(compare(None, old).remembered, new, observations).findings
    assert all((one.after, one.before) == (THEN, NOW) for one in findings)
    return {(one.table, one.kind.value): one.columns for one in findings}


def schema(at: Nanoseconds = NOW, *, everything: bool = False, **tables: TableShape) -> SchemaInspection:
    return SchemaInspection(at, everything, tables)


def in_turn(*inspections: SchemaInspection) -> SchemaComparison:
    """Return what the last look shows, after the ones before have been remembered, each after the other."""
    comparison = compare(None, inspections[0])
    for inspection in inspections[1:]:
        comparison = compare(comparison.remembered, inspection)
    return comparison


def kinds(comparison: SchemaComparison) -> Sequence[tuple[SpannerResyncKind, Sequence[str]]]:
    return [(one.kind, one.columns) for one in comparison.findings]


def of_singers(now: TableShape, before: TableShape = SINGERS) -> Mapping[str, Sequence[str]]:
    pairs = found(schema(THEN, Singers=before), schema(Singers=now))
    return {kind: columns for (_table, kind), columns in pairs.items()}


def test_the_first_inspection_finds_nothing() -> None:
    assert compare(None, schema(Singers=SINGERS)).findings == ()


def test_what_stays_as_it_is_and_what_old_rows_have_no_value_of_need_no_resync() -> None:
    assert of_singers(SINGERS) == {}
    assert of_singers(replace(SINGERS, columns=(*SINGERS.columns, ColumnShape("Age", "INT64")))) == {}
    assert of_singers(replace(SINGERS, columns=(ID, NAME))) == {}
    with_default = replace(NAME, has_default=True)  # a default that is set later changes no row
    assert of_singers(replace(SINGERS, columns=(ID, with_default, BORN))) == {}
    assert of_singers(replace(SINGERS, columns=(ID, replace(NAME, nullable=False), BORN))) == {}


def test_what_the_stream_kept_out_between_two_inspections_is_reported_of_every_table_that_it_watches() -> None:
    ttl, none = frozenset({"exclude_ttl_deletes"}), frozenset[str]()
    for before, now in ((none, ttl), (ttl, ttl), (ttl, none), (none, none)):
        tables = {"Singers": SINGERS, "Albums": SINGERS, "Others": replace(SINGERS, watched=False)}
        old, new = (
            SchemaInspection(THEN, False, tables, exclusions=before),
            SchemaInspection(NOW, False, tables, exclusions=now),
        )
        both = {(name, "table_changes_excluded_by_the_stream"): () for name in ("Albums", "Singers")}
        assert found(old, new) == (both if before or now else {})
        assert compare(old, new).remembered.exclusions == now


@pytest.mark.parametrize(
    ("columns", "kind", "named"),
    [
        (
            (ID, NAME, BORN, ColumnShape("Age", "INT64", has_default=True)),
            SpannerResyncKind.COLUMN_DEFAULTED,
            ("Age",),
        ),
        (
            (ID, NAME, BORN, ColumnShape("Age", "INT64", nullable=False)),
            SpannerResyncKind.COLUMN_DEFAULTED,
            ("Age",),
        ),
        ((ID, BORN, NAME), SpannerResyncKind.COLUMN_AGAIN, ("Name",)),
        ((ID, NAME, ColumnShape("Age", "INT64"), BORN), SpannerResyncKind.COLUMN_AGAIN, ("Born",)),
        ((ID, NAME, replace(BORN, type="TIMESTAMP")), SpannerResyncKind.COLUMN_RETYPED, ("Born",)),
        ((replace(ID, type="STRING"), NAME, BORN), SpannerResyncKind.TABLE_AGAIN, ()),
        ((ID, replace(NAME, is_key=True), BORN), SpannerResyncKind.TABLE_AGAIN, ()),
    ],
)
def test_columns_that_change_data_without_records(
    columns: tuple[ColumnShape, ...], kind: SpannerResyncKind, named: Sequence[str]
) -> None:
    assert of_singers(TableShape(columns)) == {kind: named}


@pytest.mark.parametrize(("before", "now"), [("PROTO", "BYTES"), ("ENUM", "INT64"), ("ARRAY<PROTO>", "ARRAY<BYTES>")])
def test_a_type_that_is_written_as_another_may_become_that_one_and_back_without_a_copy(before: str, now: str) -> None:
    for one, other in ((before, now), (now, before)):
        as_key = replace(ID, type=one), replace(ID, type=other)
        old, new = (
            TableShape((key, NAME, replace(BORN, type=kind))) for key, kind in zip(as_key, (one, other), strict=True)
        )
        assert of_singers(new, old) == {}
        assert of_singers(replace(new, columns=(new.columns[0], new.columns[2], NAME)), old) == {
            SpannerResyncKind.COLUMN_AGAIN: ("Name",)
        }


def test_a_column_that_the_stream_takes_up_later_needs_its_old_values() -> None:
    hidden = replace(SINGERS, columns=(ID, NAME, replace(BORN, watched=False)))
    assert of_singers(SINGERS, hidden) == {SpannerResyncKind.COLUMN_WATCHED: ("Born",)}
    assert of_singers(hidden) == {}


def test_a_column_gone_at_one_inspection_and_there_at_the_next_was_added_again_whatever_its_place() -> None:
    without = in_turn(schema(THEN, Singers=SINGERS), schema(BETWEEN, Singers=TableShape((ID, NAME))))
    assert without.findings == ()
    again = compare(without.remembered, schema(NOW, Singers=SINGERS)).findings
    assert [(one.kind, one.columns, one.after) for one in again] == [(SpannerResyncKind.COLUMN_AGAIN, ("Born",), 1_500)]


@pytest.mark.parametrize("is_seen_apart", [True, False])
def test_a_column_that_is_added_again_in_another_case_is_the_same_column_to_bigquery(is_seen_apart: bool) -> None:
    looks = [TableShape((ID, NAME)), TableShape((ID, NAME, replace(BORN, name="BORN")))][not is_seen_apart :]
    remembered = compare(None, schema(THEN, Singers=SINGERS)).remembered
    for number, look in enumerate(looks):
        comparison = compare(remembered, schema(Nanoseconds(BETWEEN + number), Singers=look))
        remembered = comparison.remembered
    assert [(one.kind, one.columns) for one in comparison.findings] == [(SpannerResyncKind.COLUMN_AGAIN, ("BORN",))]


def test_a_record_without_a_column_shows_what_both_inspections_hide() -> None:
    old, new = schema(THEN, Singers=SINGERS), schema(Singers=SINGERS)
    without = (ID, NAME)
    assert found(old, new, SchemaObservation("Singers", without, BETWEEN)) == {
        ("Singers", SpannerResyncKind.COLUMN_AGAIN): ("Born",)
    }
    assert found(old, new, SchemaObservation("Singers", without, THEN)) == {}  # a record of an older list: read late
    assert found(old, new, SchemaObservation("Singers", (*without, BORN), BETWEEN)) == {}
    other_key = SchemaObservation("Singers", (replace(ID, name="Key"), NAME, BORN), BETWEEN)
    assert found(old, new, other_key) == {("Singers", SpannerResyncKind.TABLE_AGAIN): ()}


@pytest.mark.parametrize(("committed", "is_found"), [(1_099, False), (1_100, False), (1_101, True), (1_350, True)])
def test_a_record_shows_it_also_after_more_inspections_and_one_from_before_the_column_shows_nothing(
    committed: int, is_found: bool
) -> None:
    remembered = compare(None, schema(Nanoseconds(900), Singers=TableShape((ID, NAME)))).remembered
    for at in (1_000, 1_100, 1_200, 1_300, 1_400):  # a look had the column at 1,100 first, and all have had it since
        columns = (ID, NAME) if at == 1_000 else (ID, NAME, BORN)
        remembered = compare(remembered, schema(Nanoseconds(at), Singers=TableShape(columns))).remembered
    late = SchemaObservation("Singers", (ID, NAME), Nanoseconds(committed))
    comparison = compare(remembered, schema(Singers=SINGERS), [late])
    found = [(one.kind, one.columns, one.after, one.before) for one in comparison.findings]
    assert found == ([(SpannerResyncKind.COLUMN_AGAIN, ("Born",), 1_100, NOW)] if is_found else [])
    again = compare(comparison.remembered, schema(Nanoseconds(3_000), Singers=SINGERS), [late])
    assert again.findings == (), "a snapshot from after the look that found it has it all"


@pytest.mark.parametrize("shown_at", [900, 1_200])
def test_a_column_that_only_records_have_shown_was_added_again_where_an_inspection_has_it(shown_at: int) -> None:
    without = TableShape((ID, NAME))
    shown = SchemaObservation("Singers", (ID, NAME, BORN), Nanoseconds(shown_at))
    remembered = in_turn(schema(Nanoseconds(800), Singers=without), schema(THEN, Singers=without)).remembered
    gone = compare(remembered, schema(BETWEEN, Singers=without), [shown])
    assert gone.findings == ()
    again = compare(gone.remembered, schema(Singers=SINGERS))
    assert kinds(again) == [(SpannerResyncKind.COLUMN_AGAIN, ("Born",))]
    lacking = SchemaObservation("Singers", (ID, NAME), Nanoseconds(1_300))
    at_once = compare(remembered, schema(Singers=SINGERS), [lacking, shown])
    assert kinds(at_once) == [(SpannerResyncKind.COLUMN_AGAIN, ("Born",))]


def test_a_column_that_the_stream_takes_up_later_and_a_table_made_again_have_no_past() -> None:
    hidden = replace(SINGERS, columns=(ID, NAME, replace(BORN, watched=False)))
    for before in (hidden, replace(SINGERS, watched=False), TableShape((replace(ID, type="STRING"), NAME, BORN))):
        remembered = in_turn(schema(Nanoseconds(900), Singers=before), schema(THEN, Singers=SINGERS)).remembered
        late = SchemaObservation("Singers", (ID, NAME), Nanoseconds(950))
        remembered = replace(remembered, compared_since=None)  # of that time nothing else is said
        assert compare(remembered, schema(Singers=SINGERS), [late]).findings == ()


def test_a_new_table_is_whole_only_where_the_stream_watches_everything_all_along() -> None:
    for before, after in ((True, True), (True, False), (False, True), (False, False)):
        old, new = schema(THEN, everything=before), schema(everything=after, Singers=SINGERS)
        expected = {} if before and after else {("Singers", SpannerResyncKind.TABLE_WATCHED): ()}
        assert found(old, new) == expected


def test_a_new_table_with_the_key_of_one_that_vanished_may_be_that_one_with_its_rows() -> None:
    old = schema(THEN, everything=True, Singers=SINGERS)
    assert found(old, schema(everything=True, Artists=SINGERS)) == {("Artists", SpannerResyncKind.TABLE_RENAMED): ()}
    other = TableShape((replace(ID, type="STRING"),))
    assert found(old, schema(everything=True, Artists=other)) == {}


def test_a_table_taken_out_of_the_stream_is_named_and_needs_a_resync_when_it_comes_back() -> None:
    out = in_turn(schema(THEN, Singers=SINGERS), schema(BETWEEN, Singers=replace(SINGERS, watched=False)))
    assert (out.left, out.findings) == (("Singers",), ())
    assert kinds(compare(out.remembered, schema(Singers=SINGERS))) == [(SpannerResyncKind.TABLE_WATCHED, ())]


def test_of_tables_outside_the_stream_nothing_is_remembered_but_what_a_mirror_may_still_hold() -> None:
    outside = TableShape((), watched=False)
    first = compare(None, schema(THEN, Singers=SINGERS, Albums=outside)).remembered
    assert set(first.tables) == {"Singers"}
    out = compare(first, schema(BETWEEN, Singers=outside, Albums=outside)).remembered
    assert set(out.tables) == {"Singers"}
    assert out.tables["Singers"].key == SINGERS.key
    other_key = TableShape((replace(ID, type="STRING"),))
    back = compare(out, schema(Singers=other_key, Albums=SINGERS))
    assert [(one.table, one.kind) for one in back.findings] == [
        ("Albums", SpannerResyncKind.TABLE_WATCHED),
        ("Singers", SpannerResyncKind.TABLE_AGAIN),
    ]
    left_out = replace(SINGERS, watched=False, left_out=True)
    assert set(compare(first, schema(Albums=left_out, Singers=SINGERS)).remembered.tables) == {"Singers", "Albums"}


def test_a_table_that_neither_the_file_nor_the_stream_has_is_not_remembered_and_comes_as_added() -> None:
    outside = TableShape((), watched=False)
    shown = excluding(schema(THEN, Singers=outside, Albums=SINGERS), lambda _name: False)
    assert set(compare(None, shown).remembered.tables) == {"Albums"}


def test_a_table_dropped_is_named_and_one_made_under_its_name_needs_a_resync() -> None:
    gone = in_turn(schema(THEN, everything=True, Singers=SINGERS), schema(BETWEEN, everything=True))
    assert (gone.left, gone.findings) == (("Singers",), ())
    assert compare(gone.remembered, schema(everything=True)).left == ()  # once
    again = compare(gone.remembered, schema(everything=True, Singers=SINGERS))
    assert kinds(again) == [(SpannerResyncKind.TABLE_AGAIN, ())]


def test_a_table_that_went_while_it_was_left_out_is_remembered_all_the_same() -> None:
    left_out = schema(Nanoseconds(1_200), everything=True, Singers=replace(SINGERS, watched=False))
    there = schema(everything=True, Singers=SINGERS)
    again = in_turn(replace(there, at=THEN), left_out, left_out, schema(BETWEEN, everything=True), there)
    assert kinds(again) == [(SpannerResyncKind.TABLE_AGAIN, ())]


def test_after_a_resync_nothing_of_the_past_is_held_against_a_table() -> None:
    inspections = schema(THEN, Singers=SINGERS), schema(BETWEEN, Singers=TableShape((ID, NAME)))
    without = in_turn(*inspections).remembered
    forgiven = synced(without.tables["Singers"])
    assert forgiven is not None
    assert compare(replace(without, tables={"Singers": forgiven}), schema(Singers=SINGERS)).findings == ()
    assert synced(replace(SINGERS, gone=True)) is None


def test_a_resync_request_reports_since_when_and_from_when_a_copy_fixes_it() -> None:
    one = SpannerResyncCause("T", SpannerResyncKind.COLUMN_AGAIN, Nanoseconds(10), Nanoseconds(20), ("a",))
    two = SpannerResyncCause("T", SpannerResyncKind.TABLE_AGAIN, Nanoseconds(30), Nanoseconds(40))
    request = SpannerResyncRequest("T", (one,)).with_more(
        [two, replace(one, after=Nanoseconds(50), before=Nanoseconds(60))]
    )
    assert len(request.findings) == 2
    assert (request.since, request.sync_after) == (10, 60 + COLUMNS_UNSEEN), (
        "of a column it may be missing in later changes"
    )


def test_a_table_that_the_tables_file_lets_in_is_pending_resync_until_no_reader_can_drop_changes_of_it() -> None:
    hidden = excluding(schema(THEN, everything=True, Singers=SINGERS), lambda _table: False)
    (found,) = compare(compare(None, hidden).remembered, schema(everything=True, Singers=SINGERS)).findings
    assert (found.kind, found.before, found.dropped_until) == (
        SpannerResyncKind.TABLE_WATCHED,
        NOW,
        NOW + DROPPED_UNSEEN,
    )
    request = SpannerResyncRequest("Singers", (found,)).with_more(
        [replace(found, before=Nanoseconds(NOW + 5), dropped_until=THEN)]
    )
    assert request.sync_after == NOW + DROPPED_UNSEEN
    unwatched = schema(THEN, Singers=replace(SINGERS, watched=False))
    (taken_up,) = compare(compare(None, unwatched).remembered, schema(Singers=SINGERS)).findings
    assert SpannerResyncRequest("Singers", (taken_up,)).sync_after == NOW, "what a stream has not watched nobody drops"


def test_what_the_tables_file_stops_ignoring_and_a_mirror_beside_a_history_need_the_rows_again() -> None:
    def seen(at: Nanoseconds, text: str) -> SchemaInspection:
        file = read_tables_file(text)
        return excluding(schema(at, everything=True, Singers=SINGERS), file.included, file.options)

    def changed(before: str, after: str) -> Mapping[str, Sequence[str]]:
        return {kind: columns for (_table, kind), columns in found(seen(THEN, before), seen(NOW, after)).items()}

    ignoring, history = "[tables.Singers]\nignored_columns = ['BORN']", "[tables.Singers]\nmode = 'history'"
    assert changed("", "") == changed("", ignoring) == changed(ignoring, ignoring) == {}
    assert changed(ignoring, "") == {SpannerResyncKind.COLUMN_WATCHED: ("Born",)}
    assert changed("", history) == changed(history, history) == {}
    assert (
        changed(history, "")
        == changed(history, history.replace("history", "both"))
        == {SpannerResyncKind.TABLE_WATCHED: ()}
    )


def before_the_first_inspection(now: TableShape, *columns: Sequence[ColumnShape], everything: bool = True) -> object:
    """Return what records from before any look tell, each with the columns of its time, in the order of commits."""
    observations = [SchemaObservation("Singers", tuple(each), Nanoseconds(100 + at)) for at, each in enumerate(columns)]
    first = compare(None, schema(THEN, everything=everything, Singers=now), observations)
    later = compare(compare(None, schema(THEN, everything=everything, Singers=now)).remembered, schema(), observations)
    assert first.findings == later.findings
    return {one.kind: one.columns for one in first.findings}


AGE, WITH_DEFAULT = ColumnShape("Age", "INT64"), ColumnShape("Age", "INT64", has_default=True)


@pytest.mark.parametrize(
    ("now", "columns", "expected"),
    [
        ((ID, NAME, BORN), [(ID, NAME, BORN)], {}),
        ((ID, NAME, BORN, AGE), [(ID, NAME, BORN)], {}),
        ((ID, NAME), [(ID, NAME, BORN)], {}),
        ((ID, NAME, BORN, WITH_DEFAULT), [(ID, NAME, BORN)], {SpannerResyncKind.COLUMN_DEFAULTED: ("Age",)}),
        ((ID, NAME, BORN, WITH_DEFAULT), [(ID, NAME, BORN, AGE)], {}),
        ((ID, NAME, WITH_DEFAULT), [(ID, NAME), (ID, NAME, AGE)], {SpannerResyncKind.COLUMN_DEFAULTED: ("Age",)}),
        ((ID, BORN, NAME), [(ID, NAME, BORN)], {SpannerResyncKind.COLUMN_AGAIN: ("Name",)}),
        ((ID, NAME, BORN), [(ID, NAME, BORN), (ID, NAME)], {SpannerResyncKind.COLUMN_AGAIN: ("Born",)}),
        (
            (ID, NAME, BORN),
            [(ID, NAME, replace(BORN, type="STRING"))],
            {SpannerResyncKind.COLUMN_RETYPED: ("Born",)},
        ),
        ((ID, NAME, BORN), [(ID, NAME, AGE), (ID, NAME)], {}),
        ((ID, NAME, BORN), [(replace(ID, type="STRING"), NAME)], {SpannerResyncKind.TABLE_AGAIN: ()}),
    ],
)
def test_records_from_before_the_first_inspection_tell_what_has_changed_until_then(
    now: Sequence[ColumnShape],
    columns: Sequence[Sequence[ColumnShape]],
    expected: Mapping[SpannerResyncKind, Sequence[str]],
) -> None:
    assert before_the_first_inspection(TableShape(tuple(now)), *columns) == expected


def test_where_the_stream_names_columns_one_that_was_in_no_record_was_not_watched() -> None:
    some = TableShape((ID, replace(NAME, watched=False), BORN, AGE))
    assert before_the_first_inspection(some, (ID, BORN, AGE), everything=False) == {}
    assert before_the_first_inspection(some, (ID, BORN), everything=False) == {
        SpannerResyncKind.COLUMN_WATCHED: ("Age",)
    }


def test_records_of_later_on_are_not_compared_so_nor_those_of_tables_that_are_gone_or_left_out() -> None:
    first = compare(None, schema(THEN, everything=True, Singers=SINGERS)).remembered
    second = compare(first, schema(Nanoseconds(1_200), everything=True, Singers=SINGERS)).remembered
    third = compare(second, schema(Nanoseconds(1_800), everything=True, Singers=SINGERS)).remembered
    assert [one.compared_since for one in (first, second, third)] == [None, 1_200, 1_200]
    retyped = SchemaObservation("Singers", (ID, NAME, replace(BORN, type="STRING")), Nanoseconds(1_300))
    assert compare(third, schema(everything=True, Singers=SINGERS), [retyped]).findings == ()
    early = replace(retyped, at=Nanoseconds(1_100))
    assert len(compare(third, schema(everything=True, Singers=SINGERS), [early]).findings) == 1
    for tables in ({}, {"Singers": replace(SINGERS, watched=False)}):
        assert compare(None, schema(THEN, everything=True, **tables), [early]).findings == ()
