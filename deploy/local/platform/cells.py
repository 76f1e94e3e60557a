"""The cells of Bigtable rows, and what each kind of call does to them: the rules of Bigtable in a few lines.

The demo follows its own calls with them, and a change log is replayed with them. Times are microseconds since the
epoch; garbage collection is not among the rules.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

Versions = dict[int, bytes]
"""The values of one cell by their times."""
Row = Mapping[str, Mapping[bytes, Versions]]
"""Family, qualifier, versions. What is empty is not there."""


@dataclass(frozen=True, slots=True)
class SetCell:
    """Write one version of a cell."""

    family: str
    qualifier: bytes
    timestamp: int
    value: bytes


@dataclass(frozen=True, slots=True)
class DeleteCells:
    """Delete the versions of a column from ``start``, inclusive, up to ``end``, exclusive; 0 is no end."""

    family: str
    qualifier: bytes
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class DeleteFamily:
    """Delete what a row has in a family."""

    family: str


@dataclass(frozen=True, slots=True)
class DeleteRow:
    """Delete a row."""


Mutation = SetCell | DeleteCells | DeleteFamily | DeleteRow


@dataclass(frozen=True, slots=True)
class MutateRow:
    """Apply mutations to a row, in their order, at once."""

    table: str
    row_key: bytes
    mutations: Sequence[Mutation]


@dataclass(frozen=True, slots=True)
class MutateRows:
    """Apply mutations to several rows, to each at once."""

    table: str
    rows: Sequence[MutateRow]


@dataclass(frozen=True, slots=True)
class CheckAndMutate:
    """Apply the one list of mutations to a row where a column has a cell, and the other where it has none."""

    table: str
    row_key: bytes
    family: str
    qualifier: bytes
    then: Sequence[Mutation]
    otherwise: Sequence[Mutation]


@dataclass(frozen=True, slots=True)
class Increment:
    """Add to counters of a row: numbers of 64 bits, big-endian. Each makes a new version of its cell."""

    table: str
    row_key: bytes
    amounts: Sequence[tuple[str, bytes, int]]
    """Family, qualifier, and how much."""


@dataclass(frozen=True, slots=True)
class DropRows:
    """Delete all rows whose keys begin so."""

    table: str
    prefix: bytes


Call = MutateRow | MutateRows | CheckAndMutate | Increment | DropRows


class Cells:
    """The rows of one table."""

    def __init__(self) -> None:
        self._rows: defaultdict[bytes, dict[str, dict[bytes, Versions]]] = defaultdict(dict)
        self._written = 0

    def __contains__(self, row_key: bytes) -> bool:
        return row_key in self._rows

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, row_key: bytes) -> Row:
        """Return a row; empty if there is none."""
        return self._rows.get(row_key, {})

    @property
    def rows(self) -> Mapping[bytes, Row]:
        """Return all rows by their keys."""
        return self._rows

    def apply(self, call: Call) -> int:
        """Follow a call; return how many rows it changed, each of which is one record of a change stream."""
        match call:
            case MutateRow():
                return self._changed(call.row_key, call.mutations)
            case MutateRows():
                return sum(self._changed(each.row_key, each.mutations) for each in call.rows)
            case CheckAndMutate():
                there = call.qualifier in self.row(call.row_key).get(call.family, {})
                return self._changed(call.row_key, call.then if there else call.otherwise)
            case Increment():
                for family, qualifier, amount in call.amounts:
                    self._increment(call.row_key, family, qualifier, amount)
                return 1
            case DropRows():
                gone = [row_key for row_key in self._rows if row_key.startswith(call.prefix)]
                for row_key in gone:
                    del self._rows[row_key]
                return len(gone)
        assert_never(call)

    def mutate(self, row_key: bytes, mutation: Mutation) -> None:
        """Apply one mutation to a row."""
        row = self._rows[row_key]
        match mutation:
            case SetCell(family, qualifier, timestamp, value):
                row.setdefault(family, {}).setdefault(qualifier, {})[timestamp] = value
            case DeleteCells(family, qualifier, start, end):
                versions = row.get(family, {}).get(qualifier, {})
                for timestamp in [each for each in versions if start <= each and (not end or each < end)]:
                    del versions[timestamp]
                self._clear(row, family, qualifier)
            case DeleteFamily(family):
                row.pop(family, None)
            case DeleteRow():
                row.clear()
            case _:
                assert_never(mutation)
        if not row:
            del self._rows[row_key]

    def _changed(self, row_key: bytes, mutations: Sequence[Mutation]) -> int:
        """Apply mutations to a row; return whether a change stream has a record of that.

        Bigtable has none where nothing is left of them: a row is deleted family by family, as far as it has any.
        """
        recorded = False
        for mutation in mutations:
            recorded = recorded or not isinstance(mutation, DeleteRow) or row_key in self._rows
            self.mutate(row_key, mutation)
        return int(recorded)

    def _increment(self, row_key: bytes, family: str, qualifier: bytes, amount: int) -> None:
        versions = self._rows[row_key].setdefault(family, {}).setdefault(qualifier, {})
        before = int.from_bytes(versions[max(versions)], signed=True) if versions else 0
        self._written += 1  # stands for a time that only the service knows, later than that of any version before
        versions[max(versions, default=0) + self._written] = (before + amount).to_bytes(8, signed=True)

    @staticmethod
    def _clear(row: dict[str, dict[bytes, Versions]], family: str, qualifier: bytes) -> None:
        columns = row.get(family, {})
        if not columns.get(qualifier, True):
            del columns[qualifier]
        if not columns:
            row.pop(family, None)


def newest(versions: Versions) -> bytes:
    """Return the newest value of a cell."""
    return versions[max(versions)]
