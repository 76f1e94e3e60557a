"""What a transaction writes: rows of a table, each a list of values; no mutation where there is no row."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.spanner.connection import row

Values = Iterable[Sequence[Any]]


def writes(
    how: Literal["insert", "update", "insert_or_update"], table: str, columns: Sequence[str], rows: Values
) -> list[Mutation]:
    """Return what writes rows, each the values of the columns."""
    values = [row(each) for each in rows]
    return [Mutation({how: Mutation.Write(table=table, columns=columns, values=values)})] if values else []


def deletions(table: str, keys: Values) -> list[Mutation]:
    """Return what deletes rows, by the values of their keys."""
    rows = [row(key) for key in keys]
    return [Mutation(delete=Mutation.Delete(table=table, key_set={"keys": rows}))] if rows else []
