"""Many columns that are new at once: a table is changed as seldom as possible, for BigQuery limits that."""

from collections.abc import Sequence

import pytest
import sqlglot
from sqlglot import expressions

from services.cdc_consumer.core.schema.tables import table_definition
from services.cdc_consumer.core.schema.views import view_query
from services.cdc_consumer.core.stream.counts import Counts
from shared.contracts.change_batch import Header
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.unit.cdc_consumer.world import World

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
