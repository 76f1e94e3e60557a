"""A column whose type changes at the source: its values go into a column beside the old one, and nothing waits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import expressions

from services.cdc_consumer.core.schema.tables import TableDefinition, beside, with_names
from services.cdc_consumer.core.schema.views import view_query
from services.cdc_consumer.core.stream.counts import Counts
from services.cdc_consumer.core.types.types import column_type
from shared.contracts.change_batch import Header
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message, table_definition
from tests.seeds import examples
from tests.unit.cdc_consumer.decoded import history_of, in_mode, mirror_of
from tests.unit.cdc_consumer.world import World

TYPES = ("STRING", "BYTES", "INT64", "DATE", "ARRAY<STRING>", "JSON")
VALUES: Mapping[str, tuple[object, object]] = {
    "STRING": ("abc", "abc"),
    "BYTES": ("YWJj", b"abc"),
    "INT64": ("5", 5),
    "DATE": ("1970-01-02", 1),
    "ARRAY<STRING>": (["a"], ["a"]),
    "JSON": ("[1]", "[1]"),
    "PROTO": ("CAU=", b"\x08\x05"),
    "ENUM": ("1", 1),
}
"""A value of each type, as a record has it and as it arrives."""


def of_type(kind: str) -> Header:
    return a_header(columns=(("id", "INT64"), ("name", "STRING"), ("c", kind)))


def a_row(identity: int, sequence: int, kind: str) -> Mapping[str, object]:
    return a_message(a_change(identity, sequence, c=VALUES[kind][0]), header=of_type(kind))


@pytest.mark.parametrize("mode", ["mirror", "history", "both"])
@pytest.mark.parametrize(
    ("before", "now", "name"),
    [
        ("STRING", "BYTES", "c_BYTES"),
        ("BYTES", "STRING", "c_STRING"),
        ("DATE", "INT64", "c_INT64"),
        ("ARRAY<STRING>", "STRING", "c_STRING"),
        ("INT64", "ARRAY<STRING>", "c_ARRAY_STRING"),
        ("PROTO", "BYTES", "c"),
        ("BYTES", "PROTO", "c"),
        ("ENUM", "INT64", "c"),
        ("INT64", "ENUM", "c"),
    ],
)
def test_changes_of_another_type_are_applied_and_none_is_a_dead_letter(
    mode: str, before: str, now: str, name: str
) -> None:
    world = World(tables_file=f'[defaults]\nmode = "{mode}"')
    for kind, sequence in ((before, 1), (now, 2)):
        assert world.apply(a_row(1, sequence, kind)).dead_letters == {}
    world.restart()
    assert world.apply(a_row(2, 1, now), a_row(3, 1, before)).dead_letters == {}

    mirrored = {key: row.get(name) for (key,), row in world.writer.rows("planes").items()}
    if mode != "history":
        assert mirrored == {1: VALUES[now][1], 2: VALUES[now][1], 3: VALUES[before][1] if name == "c" else None}
    if mode != "mirror":
        found = [row.get(name) for row in world.writer.appended["planes_changelog"] if row["id"] != 3]
        assert found[-2:] == [VALUES[now][1]] * 2


def test_once_both_columns_are_dropped_the_values_have_their_own_name_again(world: World) -> None:
    world.apply(a_row(1, 1, "DATE"))
    world.apply(a_row(1, 2, "INT64"))
    (found,) = world.tables.there.values()
    assert [column.name for column in found.columns][-1] == "c_INT64"

    kept = tuple(column for column in found.columns if column.name not in ("c", "c_INT64"))
    world.tables.there["planes"] = replace(found, columns=kept)  # an operator drops both
    counts = world.apply(a_row(2, 1, "INT64"))

    assert (counts.dead_letters, counts.rows_written) == ({}, 1)
    assert [row.get("c") for row in world.writer.rows("planes").values()][-1] == 5
    assert "c_INT64" not in [column.name for column in world.tables.there["planes"].columns]


def test_old_and_new_lists_of_one_task_each_find_their_column(world: World) -> None:
    """A backlog holds both; the newest change of a key wins, whatever its list."""
    counts = world.apply(a_row(1, 2, "INT64"), a_row(1, 1, "DATE"), a_row(2, 1, "DATE"), a_row(3, 3, "STRING"))

    assert counts.dead_letters == {}
    (found,) = world.tables.there.values()
    kinds = {column.name: column.type.bigquery for column in found.columns if column.name.startswith("c")}
    assert len(kinds) == 3
    rows = world.writer.rows("planes")
    for key, kind in (((1,), "INT64"), ((2,), "DATE"), ((3,), "STRING")):
        (name,) = [column for column, there in kinds.items() if there == kind]
        assert {column: rows[key].get(column) for column in kinds if rows[key].get(column) is not None} == {
            name: VALUES[kind][1]
        }


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from(TYPES), st.booleans()), min_size=1, max_size=12
    )
)
def test_whatever_the_order_of_types_the_newest_value_of_each_row_stands_under_its_type(
    changes: Sequence[tuple[int, int, str, bool]],
) -> None:
    world = World()
    newest: dict[int, tuple[int, str]] = {}
    for key, sequence, kind, restarts in changes:
        if restarts:
            world.restart()
            world.tables.forget("planes")
        assert world.apply(a_row(key, sequence, kind)).dead_letters == {}
        if sequence >= newest.get(key, (0, ""))[0]:
            newest[key] = sequence, kind

    kinds = {column.name: column.type.bigquery for column in world.tables.there["planes"].columns}
    rows = world.writer.rows("planes")
    assert rows.keys() == {(key,) for key in newest}
    for key, (_sequence, kind) in newest.items():
        found = {name: value for name, value in rows[key,].items() if name.startswith("c") and value is not None}
        assert list(found.values()) == [VALUES[kind][1]]
        assert [kinds[name] for name in found] == [kind]


columns = st.dictionaries(
    st.sampled_from(["c", "C_string", "c_BYTES", "c_STRING_BYTES", "c_ARRAY", "c_ARRAY_BYTES", "d"]),
    st.sampled_from(["STRING", "BYTES", "ARRAY<BYTES>"]),
).filter(lambda found: len({name.upper() for name in found}) == len(found))


def definition(found: Mapping[str, str]) -> TableDefinition:
    return table_definition(a_header(columns=(("id", "INT64"), *found.items())))


@given(columns, columns)
def test_no_two_columns_share_a_place_and_a_place_stays(there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    table, asked = definition(there), definition(wanted)
    placed = with_names(asked, beside(asked, table))
    names = [column.name.upper() for column in placed.columns]
    assert len(set(names)) == len(names)

    seen = {column.name.upper(): column.type.bigquery for column in table.columns}
    if all(seen.get(column.name.upper(), column.type.bigquery) == column.type.bigquery for column in placed.columns):
        new = tuple(column for column in placed.columns if column.name.upper() not in seen)
        widened = replace(table, columns=(*table.columns, *new))
        assert with_names(asked, beside(asked, widened)) == placed
        assert beside(table, widened) == {}


@pytest.mark.parametrize(
    "wanted",
    [mirror_of("", of_type("STRING")), history_of(in_mode("history"), of_type("STRING"))],
    ids=["mirror", "history"],
)
def test_what_millrace_adds_itself_and_the_key_have_no_column_beside_them(wanted: TableDefinition) -> None:
    other = {"STRING": "INT64"}
    columns = tuple(
        replace(column, type=column_type(other.get(column.type.bigquery, "STRING"))) for column in wanted.columns
    )
    assert beside(wanted, replace(wanted, columns=columns)) == {"name": "name_STRING", "c": "c_STRING"}


# Many columns that are new at once: a table is changed as seldom as possible, for BigQuery limits that.


STEPS = 12
ADDED = [a_header(columns=(*PLANE_COLUMNS, *((f"c{n}", "STRING") for n in range(step)))) for step in range(STEPS)]
IN_TURN = [a_header(columns=(*PLANE_COLUMNS, (f"c{step}", "STRING"))) for step in range(STEPS)]
"""The source adds a column, drops it and adds another."""
CONFLICTING = a_header(columns=(("id", "STRING"), ("name", "STRING"), ("seats", "INT64"), ("new", "STRING")))


def widened(world: World, lists: Sequence[Header]) -> tuple[Counts, int]:
    """Apply a change of each column list; return what became of them, and how often the table was widened."""
    world.tables.ensure(table_definition(a_header()))
    before = len(world.effects.done)
    messages = [a_message(a_change(key), header=header, ack_id=f"a{key}") for key, header in enumerate(lists)]
    counts = world.apply(*messages)
    return counts, world.effects.done[before:].count("widen planes")


@pytest.mark.parametrize("lists", [ADDED, IN_TURN], ids=["added", "added and dropped in turn"])
def test_a_backlog_of_many_column_lists_changes_the_table_once(lists: Sequence[Header]) -> None:
    counts, times = widened(World(), lists)

    assert (counts.rows_written, times) == (STEPS, 1)


@pytest.mark.parametrize("lists", [[CONFLICTING, *IN_TURN], [*IN_TURN, CONFLICTING]], ids=["first", "last"])
def test_a_column_list_that_conflicts_keeps_none_of_the_others_out(lists: Sequence[Header]) -> None:
    counts, _times = widened(World(), lists)

    assert (counts.rows_written, counts.dead_letters) == (STEPS, {"schema_conflict": 1})


def test_a_view_takes_columns_that_are_words_of_sql() -> None:
    words = ["select", "from", "order", "group", "table", "partition"]
    query = view_query("p.d.t_changelog", words, table_definition(a_header(key=("id",))))

    parsed = sqlglot.parse_one(query, read="bigquery")
    assert isinstance(parsed, expressions.Query)
    assert {*words} <= {*parsed.named_selects}
