"""What the demo does to its tables: pure and seeded, so that two runs of one size commit the same changes.

A workload tells stories, some at once: each is a sequence of transactions on a few rows. Beside it goes a model of the
tables that says what they must hold in the end. This module knows how stories are told; which there are is each
database's own (`flights_workload`, `weather_workload`).
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from deploy.local.demo.package_data import batches_of
from deploy.local.demo.schema import DemoDatabase
from deploy.local.platform.source import Row, Value, Write

Key = tuple[Value, ...]
Story = Iterator[list[Write]]

_TOLD_AT_ONCE: Final = 4
_ROWS_A_TRANSACTION: Final = 500


@dataclass(frozen=True, slots=True)
class Transaction:
    """Mutations that are committed together, and what they do to rows (cascades included)."""

    writes: Sequence[Write]
    changes: Mapping[str, int]
    """How many rows of each table they change."""
    left: Mapping[str, Mapping[Key, Row | None]] = field(default_factory=dict)
    """By table and key, the rows that they change as they leave them; None: deleted. Of tables with a history alone."""


class Workload(ABC):
    """The changes of one run to one database, and a model of its tables."""

    def __init__(
        self, demo: DemoDatabase, before: Mapping[str, Sequence[Row]], rows: Mapping[str, Sequence[Row]], seed: int
    ) -> None:
        """``before`` are the rows from before the change stream, ``rows`` those to load then.

        The first row of each table names all its columns.
        """
        self.demo = demo
        self.tables: dict[str, dict[Key, dict[str, Value]]] = {table: {} for table in demo.keys}
        self.column_is_there = False
        self._before = before
        self._rows = rows
        self._columns = {table: list(next(chain(before[table], rows[table]), {})) for table in demo.keys}
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret

    def before(self) -> Iterator[Transaction]:
        """Yield the rows that are there before the change stream is, many to a transaction."""
        return self._insert(self._before)

    def load(self) -> Iterator[Transaction]:
        """Yield the rows that come first through the change stream, many to a transaction."""
        return self._insert(self._rows)

    def changes(self, wanted: int) -> Iterator[Transaction]:
        """Yield transactions until they have changed at least as many rows as wanted."""
        stories: list[Story] = []
        done = 0
        while done < wanted:
            while len(stories) < _TOLD_AT_ONCE:
                stories.append(self._next_story())
            story = self._random.choice(stories)
            writes = next(story, None)
            if writes is None:
                stories.remove(story)
            elif writes:
                transaction = self._transaction(writes)
                done += sum(transaction.changes.values())
                yield transaction

    def column_added(self) -> None:
        """Take note that the column that comes later is there: NULL in every row, and changes carry values from now."""
        added = self.demo.added
        for row in self.tables[added.table].values():
            row[added.name] = None
        self._columns[added.table].append(added.name)
        self.column_is_there = True

    @abstractmethod
    def _next_story(self) -> Story:
        """Begin another story."""

    @abstractmethod
    def _value_of_added_column(self, row: Row) -> Value:
        """Return what the column that comes later holds for a row of its table."""

    def _insert(self, rows: Mapping[str, Sequence[Row]]) -> Iterator[Transaction]:
        for table in self.demo.keys:
            for batch in batches_of(rows[table], _ROWS_A_TRANSACTION):
                yield self._transaction([Write("insert", table, row) for row in batch])

    def _change_for_a_while(self, table: str, row: Row, column: str, values: Sequence[Value]) -> Story:
        """Give one column one value after the other in successive transactions, and in the end its own again."""
        for value in (*values, row[column]):
            yield self._if_there(table, row, {column: value})

    def _delete_and_insert_again(self, table: str, row: Row, times: int = 2) -> Story:
        """Delete a row and insert it again, unless others have done so in between."""
        row = dict(row)
        key = self._key(table, row)
        for _ in range(times):
            if key not in self.tables[table]:
                return
            yield [Write("delete", table, self._named_key(table, row))]
            if not self._may_be_inserted(table, key):
                return
            yield [Write("insert", table, self._with_added(table, row))]

    def _replace(self, table: str, row: Row, *left_out: str) -> Story:
        """Replace a whole row, leaving columns out, which become NULL; and again with all of them."""
        row = dict(row)
        if self._key(table, row) in self.tables[table]:
            yield [Write("replace", table, {name: value for name, value in row.items() if name not in left_out})]
        if self._may_be_inserted(table, self._key(table, row), replacing=True):
            yield [Write("replace", table, self._with_added(table, row))]

    def _transaction(self, writes: Sequence[Write]) -> Transaction:
        """Apply writes to the model and count the rows that they change."""
        changed: list[tuple[str, Key]] = []
        for write in writes:
            table, key = self.tables[write.table], self._key(write.table, write.row)
            changed.append((write.table, key))
            match write.operation:
                case "insert" | "replace":
                    assert write.operation == "replace" or key not in table, f"{key} is there already"
                    table[key] = {**dict.fromkeys(self._columns[write.table]), **write.row}
                case "update":
                    table[key] |= write.row
                case "delete":
                    del table[key]
                    changed += self._cascade(write.table, key)
                case "insert_or_update":
                    raise AssertionError("the demo says which it means")
        left: dict[str, dict[Key, Row | None]] = {}
        for name in self.demo.histories:
            rows = self.tables[name]
            left[name] = {key: dict(rows[key]) if key in rows else None for one, key in changed if one == name}
        return Transaction(writes, Counter(name for name, _key in changed), left)

    def _cascade(self, parent: str, key: Key) -> list[tuple[str, Key]]:
        """Delete from the model what goes with a parent's row; return the tables and keys of that."""
        child = self.demo.cascades.get(parent)
        if child is None:
            return []
        gone = [each for each in self.tables[child] if each[: len(key)] == key]
        for each in gone:
            del self.tables[child][each]
        return [(child, each) for each in gone]

    def _any(self, table: str) -> Row:
        return self._random.choice(list(self.tables[table].values()))

    def _there(self, table: str, row: Row) -> bool:
        return self._key(table, row) in self.tables[table]

    def _may_be_inserted(self, table: str, key: Key, *, replacing: bool = False) -> bool:
        """Return whether a row is not there (unless it is replaced), and all that it is a child of is."""
        parents = [parent for parent, child in self.demo.cascades.items() if child == table]
        return (replacing or key not in self.tables[table]) and all(
            key[: len(self.demo.keys[parent])] in self.tables[parent] for parent in parents
        )

    def _if_there(self, table: str, row: Row, values: Row) -> list[Write]:
        return [self._update(table, row, values)] if self._there(table, row) else []

    def _update(self, table: str, row: Row, values: Row) -> Write:
        return Write("update", table, {**self._named_key(table, row), **values})

    def _with_added(self, table: str, row: Row) -> Row:
        """Return a row with the column that comes later, once it is there."""
        if not self.column_is_there or table != self.demo.added.table:
            return row
        return {**row, self.demo.added.name: self._value_of_added_column(row)}

    def _key(self, table: str, row: Row) -> Key:
        return tuple(row[column] for column in self.demo.keys[table])

    def _named_key(self, table: str, row: Row) -> Row:
        return {column: row[column] for column in self.demo.keys[table]}
