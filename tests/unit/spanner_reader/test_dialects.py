"""By which index the partition table's rows are found, in both dialects, and what a database of another one does."""

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.cloud.spanner_v1 import PartialResultSet, Session, TypeCode

from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.spanner.dialects import Dialect, partition_sql
from shared.contracts.errors import MisconfiguredError

HINTS = {
    Dialect.GOOGLESQL: "partitions@{FORCE_INDEX=partitions_by_state}",
    Dialect.POSTGRESQL: '"partitions"/*@ FORCE_INDEX = "partitions_by_state" */',
}


class FakeAnswer:
    """Spanner's answer to a query: one row of one text."""

    def __init__(self, text: str) -> None:
        fields = [{"name": "option_value", "type_": {"code": TypeCode.STRING}}]
        made = PartialResultSet.pb(PartialResultSet(metadata={"row_type": {"fields": fields}}))
        made.values.add(string_value=text)
        self._response = PartialResultSet(made)

    async def __aiter__(self) -> AsyncIterator[PartialResultSet]:
        yield self._response

    def cancel(self) -> None:
        """End it."""


class FakeSpanner:
    """Google's client of Spanner, which answers every query with a dialect."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect

    async def create_session(self, **_call: Any) -> Session:
        return Session(name="sessions/s", multiplexed=True)

    async def execute_streaming_sql(self, _request: Any, **_call: Any) -> FakeAnswer:
        return FakeAnswer(self._dialect)


def a_database(dialect: str) -> SpannerDatabaseClient:
    channels = cast("SpannerChannels", SimpleNamespace(client=FakeSpanner(dialect), admin=None))
    return SpannerDatabaseClient("projects/p/instances/i/databases/d", channels)


async def test_a_database_says_which_dialect_it_has_and_one_that_is_not_known_is_refused() -> None:
    database = a_database("POSTGRESQL")
    await database.learn_dialect()
    assert database.dialect is Dialect.POSTGRESQL

    with pytest.raises(MisconfiguredError, match=r"/d has the dialect ESPERANTO, .* SPANNER_DATABASE") as refused:
        await a_database("ESPERANTO").learn_dialect()
    assert refused.value.code == "dialect-unknown"


@pytest.mark.parametrize("dialect", Dialect)
def test_what_is_asked_by_state_reads_the_index_of_states_and_not_the_finished_partitions(dialect: Dialect) -> None:
    sql = partition_sql(dialect, "partitions")
    by_state = {"unfinished": (sql.unfinished, 1), "finished": (sql.finished, 1), "forgettable": (sql.forgettable, 2)}

    for name, (statement, tables) in by_state.items():
        assert statement.count(HINTS[dialect]) == tables, name
        # Spanner answers no `!=` by an index.
        assert not re.search(r"state (!=|<>|NOT)", statement), name
    assert "FORCE_INDEX" not in sql.named, "found by its key"


def test_the_index_that_the_hint_names_is_made_with_the_table() -> None:
    googlesql, postgresql = (partition_sql(dialect, "partitions") for dialect in Dialect)

    assert googlesql.create[-1] == "CREATE INDEX IF NOT EXISTS partitions_by_state ON partitions (state)"
    assert postgresql.create[-1] == 'CREATE INDEX IF NOT EXISTS "partitions_by_state" ON "partitions" (state)'
