"""By which index the partition table's rows are found, in both dialects, and what a database of another one does."""

import re

import pytest

from services.spanner_reader.adapters.spanner.dialects import Dialect, partition_ddl, partition_sql, stream_grants
from shared.contracts.errors import MisconfiguredError
from tests.documents import roles
from tests.fakes.spanner_client import FakeSpanner

HINTS = {
    Dialect.GOOGLESQL: "partitions@{FORCE_INDEX=partitions_by_state}",
    Dialect.POSTGRESQL: '"partitions"/*@ FORCE_INDEX = "partitions_by_state" */',
}


async def test_a_database_says_which_dialect_it_has_and_one_that_is_not_known_is_refused() -> None:
    database = FakeSpanner({"": [["POSTGRESQL"]]}).database()
    await database.learn_dialect()
    assert database.dialect is Dialect.POSTGRESQL

    with pytest.raises(MisconfiguredError, match=r"/d has the dialect ESPERANTO, .* SPANNER_DATABASE") as refused:
        await FakeSpanner({"": [["ESPERANTO"]]}).database().learn_dialect()
    assert refused.value.code == "dialect-unknown"


@pytest.mark.parametrize("dialect", Dialect)
def test_what_is_asked_by_state_reads_the_index_of_states_and_not_the_finished_partitions(dialect: Dialect) -> None:
    sql = partition_sql(dialect, "partitions")

    for name, tables in {"unfinished": 1, "finished": 1, "forgettable": 2}.items():
        assert sql[name].count(HINTS[dialect]) == tables, name
        # Spanner answers no `!=` by an index.
        assert not re.search(r"state (!=|<>|NOT)", sql[name]), name
    assert "FORCE_INDEX" not in sql["named"], "found by its key"


def test_the_index_that_the_hint_names_is_made_with_the_table() -> None:
    googlesql, postgresql = (partition_ddl(dialect, "partitions") for dialect in Dialect)

    assert googlesql[-1] == "CREATE INDEX IF NOT EXISTS partitions_by_state ON partitions (state)"
    assert postgresql[-1] == 'CREATE INDEX IF NOT EXISTS "partitions_by_state" ON "partitions" (state)'


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_page_of_roles_has_the_statements_that_let_a_role_read_a_stream(dialect: Dialect) -> None:
    grants = stream_grants(dialect, "everything", "mirror")

    assert len(grants) == 2
    assert "\n".join(f"{grant};" for grant in grants) in roles.text()


def test_names_in_upper_case_are_quoted_in_the_grants_of_the_postgresql_dialect() -> None:
    assert stream_grants(Dialect.POSTGRESQL, "Everything", "mirror") == (
        'GRANT SELECT ON CHANGE STREAM "Everything" TO mirror',
        'GRANT EXECUTE ON FUNCTION spanner."read_json_Everything" TO mirror',
    )
