"""The calls that change rows: checked, forwarded, and recorded as what they did, in the order they did it.

The rows are locked from before the emulator's call until the record is in the stream.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.mutations import check_mutations, check_rules, set_times
from emulators.bigtable_streams.profiles import Cluster, Profiles
from emulators.bigtable_streams.protocol import (
    DATA,
    CheckAndMutateRowRequest,
    CheckAndMutateRowResponse,
    MutateRowRequest,
    MutateRowsRequest,
    MutateRowsResponse,
    ReadModifyWriteRowRequest,
    ReadModifyWriteRowResponse,
)
from emulators.bigtable_streams.refusals import RefusedError, invalid
from emulators.bigtable_streams.rows import (
    CellName,
    RowCells,
    delete_family,
    delete_version,
    read_row,
    read_values,
    set_value,
)
from emulators.bigtable_streams.tables import Table, Tables

log = structlog.get_logger()


class Writes:
    """Serves MutateRow, MutateRows, CheckAndMutateRow and ReadModifyWriteRow."""

    def __init__(self, emulator: Emulator, tables: Tables, profiles: Profiles, now: Callable[[], int]) -> None:
        self._emulator = emulator
        self._tables = tables
        self._profiles = profiles
        self._now = now

    async def mutate_row(self, data: bytes) -> bytes:
        """Serve MutateRow."""
        request = MutateRowRequest.FromString(data)
        table, cluster = await self._target(request)
        if check_mutations(request.mutations, request.row_key, table.name, table.families):
            set_times(request.mutations, self._now())
            data = request.SerializeToString()
        async with table.locks.rows([request.row_key]):
            entries = await self._as_recorded(table, request.row_key, request.mutations)
            answer = await self._emulator.unary(f"{DATA}MutateRow", data)
            table.record(request.row_key, entries, cluster.id, cluster.tiebreaker)
        return answer

    async def check_and_mutate_row(self, data: bytes) -> bytes:
        """Serve CheckAndMutateRow: what is recorded is the branch taken."""
        request = CheckAndMutateRowRequest.FromString(data)
        self._profiles.check_transactional(_table_name(request), request.app_profile_id)
        table, cluster = await self._target(request)
        branches = [request.true_mutations, request.false_mutations]
        if not any(branches):
            raise invalid("No mutations provided")
        for mutations in filter(None, branches):
            if check_mutations(mutations, request.row_key, table.name, table.families):
                set_times(mutations, self._now())
        async with table.locks.rows([request.row_key]):
            recorded = [await self._as_recorded(table, request.row_key, mutations) for mutations in branches]
            answer = await self._emulator.unary(f"{DATA}CheckAndMutateRow", request.SerializeToString())
            matched = CheckAndMutateRowResponse.FromString(answer).predicate_matched
            table.record(request.row_key, recorded[0 if matched else 1], cluster.id, cluster.tiebreaker)
        return answer

    async def read_modify_write_row(self, data: bytes) -> bytes:
        """Serve ReadModifyWriteRow: what is recorded is the cells that came of it."""
        request = ReadModifyWriteRowRequest.FromString(data)
        self._profiles.check_transactional(_table_name(request), request.app_profile_id)
        table, cluster = await self._target(request)
        check_rules(request.rules, request.row_key, table.name, table.families)
        several = len(request.rules) > 1
        async with table.locks.rows([request.row_key]):
            before = await read_values(self._emulator, table.name, request.row_key) if several else {}
            made: Mapping[CellName, bytes] = {}
            try:
                answer = await self._emulator.unary(f"{DATA}ReadModifyWriteRow", data)
                made = dict(_cells(ReadModifyWriteRowResponse.FromString(answer).row))
            finally:
                if several:
                    await self._restore(table, request.row_key, before, made)
            entries = [set_value(cell, value) for cell, value in made.items()]
            table.record(request.row_key, entries, cluster.id, cluster.tiebreaker)
        return answer

    async def _restore(
        self, table: Table, row_key: bytes, before: Mapping[CellName, bytes], made: Mapping[CellName, bytes]
    ) -> None:
        """Undo what the emulator did to a row beside what it answered.

        Where two rules name one column, each reads the clock; when a millisecond passes in between, the first one
        leaves a version that no rule asked for. Where one rule fails, those before it have been followed.
        """
        after = await read_values(self._emulator, table.name, row_key)
        undo = [delete_version(cell) for cell in after if cell not in before and cell not in made]
        undo += [set_value(cell, before[cell]) for cell in before if cell not in made and after[cell] != before[cell]]
        if undo:
            request = MutateRowRequest(table_name=table.name, row_key=row_key, mutations=undo)
            await self._emulator.unary(f"{DATA}MutateRow", request.SerializeToString())

    async def mutate_rows(self, data: bytes) -> bytes:
        """Serve MutateRows: each entry stands or falls by itself, and is a record of its own."""
        request = MutateRowsRequest.FromString(data)
        table, cluster = await self._target(request)
        if not request.entries:
            raise invalid("No entries provided")
        if sum(len(entry.mutations) for entry in request.entries) > 100_000:
            raise invalid("Too many mutations in one request, at most 100000 are allowed")
        refused, without_time = self._check_entries(table, request.entries)
        accepted = [place for place in range(len(request.entries)) if place not in refused]
        if without_time or refused:
            kept = MutateRowsRequest(table_name=request.table_name, app_profile_id=request.app_profile_id)
            kept.entries.extend(request.entries[place] for place in accepted)
            data = kept.SerializeToString()
        answer = MutateRowsResponse()
        for place, error in refused.items():
            answer.entries.add(index=place).status.MergeFrom(_status(error))
        if accepted:
            await self._forward_entries(table, cluster, request.entries, accepted, data, answer)
        return bytes(answer.SerializeToString())

    async def _forward_entries(
        self, table: Table, cluster: Cluster, entries: Sequence[Any], accepted: Sequence[int], data: bytes, answer: Any
    ) -> None:
        async with table.locks.rows(entries[place].row_key for place in accepted):
            recorded = await self._entries_as_recorded(table, entries, accepted)
            done: set[int] = set()
            async for each in self._emulator.server_streaming(f"{DATA}MutateRows", data):
                for status in MutateRowsResponse.FromString(each).entries:
                    place = accepted[status.index]
                    answer.entries.add(index=place).status.MergeFrom(status.status)
                    if status.status.code:
                        log.warning("mutation_refused_by_the_emulator", message=status.status.message)
                    else:
                        done.add(place)
            for place in accepted:
                if place in done:
                    table.record(entries[place].row_key, recorded[place], cluster.id, cluster.tiebreaker)

    def _check_entries(self, table: Table, entries: Sequence[Any]) -> tuple[dict[int, RefusedError], bool]:
        refused: dict[int, RefusedError] = {}
        now, any_without_time = self._now(), False
        for place, entry in enumerate(entries):
            try:
                if check_mutations(entry.mutations, entry.row_key, table.name, table.families):
                    set_times(entry.mutations, now)
                    any_without_time = True
            except RefusedError as error:
                refused[place] = error
        return refused, any_without_time

    async def _target(self, request: Any) -> tuple[Table, Cluster]:
        name = _table_name(request)
        cluster = self._profiles.writer(name, request.app_profile_id)
        return await self._tables.get(name), cluster

    async def _as_recorded(self, table: Table, row_key: bytes, mutations: Sequence[Any]) -> Sequence[Any]:
        if table.log is None or not any(each.HasField("delete_from_row") for each in mutations):
            return mutations
        return as_recorded(await read_row(self._emulator, table.name, row_key), mutations)

    async def _entries_as_recorded(
        self, table: Table, entries: Sequence[Any], accepted: Iterable[int]
    ) -> dict[int, Sequence[Any]]:
        """Return what each entry will be recorded as: several of one row happen one after the other."""
        recorded: dict[int, Sequence[Any]] = {place: entries[place].mutations for place in accepted}
        rows: defaultdict[bytes, list[int]] = defaultdict(list)
        deleted: set[bytes] = set()
        for place, mutations in recorded.items():
            rows[entries[place].row_key].append(place)
            if any(each.HasField("delete_from_row") for each in mutations):
                deleted.add(entries[place].row_key)
        for row_key in deleted if table.log is not None else ():
            row = await read_row(self._emulator, table.name, row_key)
            for place in rows[row_key]:
                recorded[place] = as_recorded(row, entries[place].mutations)
        return recorded


def as_recorded(row: RowCells, mutations: Iterable[Any]) -> Sequence[Any]:
    """Return a row's mutations, DeleteFromRow as one DeleteFromFamily for each family with data; play them on it."""
    recorded: list[Any] = []
    for mutation in mutations:
        if mutation.HasField("delete_from_row"):
            recorded += [delete_family(family) for family in row.families()]
        else:
            recorded.append(mutation)
        row.apply(mutation)
    return recorded


def _table_name(request: Any) -> str:
    name: str = request.table_name or request.authorized_view_name.split("/authorizedViews/")[0]
    return name


def _cells(row: Any) -> Iterable[tuple[CellName, bytes]]:
    for family in row.families:
        for column in family.columns:
            for cell in column.cells:
                yield CellName(family.name, column.qualifier, cell.timestamp_micros), cell.value


def _status(error: RefusedError) -> Any:
    code: tuple[int, str] = error.code.value
    status = MutateRowsResponse.Entry().status
    status.code, status.message = code[0], error.message
    return status
