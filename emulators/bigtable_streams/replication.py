"""Writes that another cluster took, arriving here late: Bigtable's rule decides what the store makes of them.

Between two changes of one cell, sets and deletes alike, the one with the later commit time wins; at equal times the
larger tiebreaker (google/bigtable/v2/bigtable.proto, DataChange.tiebreaker). So a late write changes only what no later
change has touched, but the stream has all of it. The store behind the front is that of the instance's first cluster,
and every profile reads the same stream.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.mutations import check_mutations, set_times
from emulators.bigtable_streams.profiles import Cluster
from emulators.bigtable_streams.protocol import DATA, MutateRowRequest
from emulators.bigtable_streams.refusals import invalid, precondition
from emulators.bigtable_streams.rows import (
    RowCells,
    delete_version,
    deletes,
    read_row,
    written_cell,
)
from emulators.bigtable_streams.tables import Table
from emulators.bigtable_streams.writes import as_recorded


class Replication:
    """Applies what other clusters took."""

    def __init__(self, emulator: Emulator, now: Callable[[], int]) -> None:
        self._emulator = emulator
        self._now = now

    async def arrive(
        self, table: Table, row_key: bytes, mutations: Sequence[Any], commit: int, cluster: Cluster
    ) -> None:
        """Apply as much of a write as wins, and record all of it; RefusedError if it cannot have been taken so."""
        if table.log is None:
            raise precondition(f"Change stream is not enabled for table {table.name}")
        if commit > self._now():
            raise invalid("commit is in the future")
        if commit < table.log.trimmed_until:
            raise invalid("commit is before what is still known of the row: the conflict cannot be decided")
        if check_mutations(mutations, row_key, table.name, table.families):
            set_times(mutations, commit)
        order = (commit, cluster.tiebreaker)
        async with table.locks.rows([row_key]):
            history = table.log.history(row_key)
            if any(record.order == order for record in history):
                raise invalid("the row has a change of this commit time and tiebreaker already")
            if any(record.cluster == cluster.id and record.commit >= commit for record in history):
                # change streams overview: the records of one row key and cluster are in commit timestamp order
                raise invalid("the row has a later change of this cluster already")
            row = await read_row(self._emulator, table.name, row_key)
            entries = as_recorded(row.copy(), mutations)
            later = [entry for record in history if record.order > order for entry in record.entries]
            winning = what_wins(entries, later, row)
            if winning:
                request = MutateRowRequest(table_name=table.name, row_key=row_key, mutations=winning)
                await self._emulator.unary(f"{DATA}MutateRow", request.SerializeToString())
            if entries:
                table.log.append(row_key, entries, cluster.id, commit=commit, tiebreaker=cluster.tiebreaker)


def what_wins(entries: Iterable[Any], later: Sequence[Any], row: RowCells) -> list[Any]:
    """Return what entries do to a row that has had later ones; RefusedError where that would need a sum's parts."""
    winning: list[Any] = []
    written_later = {cell for entry in later if (cell := written_cell(entry)) is not None}
    added_later = {written_cell(entry) for entry in later if entry.WhichOneof("mutation") != "set_cell"}
    for entry in entries:
        cell = written_cell(entry)
        if cell is None:
            gone = [each for each in row if deletes(entry, each)]
            if any(each in added_later for each in gone):
                raise invalid("a sum that was added to since cannot be taken apart")
            winning += [delete_version(each) for each in gone if each not in written_later]
            row = RowCells(each for each in row if each in written_later or each not in gone)
        elif not any(deletes(each, cell) for each in later) and (
            cell not in written_later or entry.WhichOneof("mutation") != "set_cell"
        ):
            winning.append(entry)
            row.apply(entry)
    return winning
