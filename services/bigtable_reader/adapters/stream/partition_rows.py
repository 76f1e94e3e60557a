"""The rows of the partition table, read whole, and each written by one conditional request.

What they look like is in `partition_cells.py`. Conditions name the whole value that was seen, or what no other value
has in common with it, and every write makes another one: so a request that is late, or sent twice, changes nothing.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog
from google.cloud.bigtable_v2.types import (
    CheckAndMutateRowRequest,
    CheckAndMutateRowResponse,
    MutateRowRequest,
    MutateRowResponse,
)

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Method, Table
from services.bigtable_reader.adapters.bigtable.row_chunks import READ_ROWS, Cell, read_rows
from services.bigtable_reader.adapters.stream.partition_cells import (
    ABOUT,
    FORMAT,
    LEASE,
    NOTE,
    PAUSED,
    PRESENT,
    RESYNC,
    SAVED,
    SEEN,
    TOPIC,
    VERSION,
    About,
    Column,
    Lease,
    PartitionContent,
    PartitionRow,
    Presence,
    Scan,
    TopologyRow,
    partition_of,
    shown,
    topology_of,
)
from services.bigtable_reader.core.schema.resync import Resync
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream.partitions import StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.topology import KeyRangeTopology
from shared.contracts.errors import MisconfiguredError

_CHECK_AND_MUTATE: Final = Method("CheckAndMutateRow", CheckAndMutateRowRequest.pb(), CheckAndMutateRowResponse.pb())
_MUTATE: Final = Method("MutateRow", MutateRowRequest.pb(), MutateRowResponse.pb())
_BIGTABLES_CLOCK: Final = -1
_READS: Final = 3
"""The emulator shows a row now and then while columns are being taken out of it, with too few; Bigtable never does."""
_A_MOMENT: Final = 0.1
_REPLACED: Final = 0
_UNIQUE: Final = re.compile("[0-9a-f]{32}")
"""What writers of the cell of `resync_cell.py` call themselves: each write makes up another."""
_PAGE: Final = 1_000
"""Rows of the whole partition table in one call: at a first start only."""
_PAGE_TIMEOUT: Final = 60.0


class PartitionRows:
    """The rows of one change stream. TransientError of a write leaves open whether it was done, or will be."""

    def __init__(self, channels: BigtableChannels, table: Table, stream: str) -> None:
        if not stream or "#" in stream:
            raise MisconfiguredError(
                "change-stream-name-invalid", f"CHANGE_STREAM_NAME is {stream!r}: name the stream, without #"
            )
        self.stream = stream
        self.table = table
        self._channels = channels
        self._prefix = f"{stream}#".encode()
        self._topology = self._prefix + b"topology"
        self._partition = self._prefix + b"partition#"
        self._reader = self._prefix + b"reader#"
        self._snapshot = self._prefix + b"snapshot"

    async def scan(self) -> Scan:
        """Read all rows of the stream; the key ranges' row last, so that a new row is never taken for an old."""
        partitions, readers = {}, {}
        request = READ_ROWS.request(table_name=self.table.name, app_profile_id=self.table.app_profile)
        for prefix in (self._partition, self._reader):
            rows = request.rows.row_ranges.add()
            rows.start_key_closed, rows.end_key_open = prefix, prefix[:-1] + b"$"  # the letter after #
        async for key, cells in self._rows(request):
            if key.startswith(self._partition):
                partitions[StreamRangeId(key[len(self._partition) :].decode())] = partition_of(key, cells)
            else:
                for cell in cells:
                    presence = Presence(cell.value, Microseconds(cell.timestamp))
                    readers[key[len(self._reader) :].decode()] = presence
        return Scan(await self.topology(), partitions, readers)

    async def topology(self) -> TopologyRow | None:
        """Read the key ranges."""
        for reads_left in reversed(range(_READS)):
            cells = await self._row(self._topology)
            try:
                return topology_of(self._topology, cells) if cells else None
            except MisconfiguredError:  # this stops every reader: it has to be so for longer than a moment
                if not reads_left:
                    raise
                await asyncio.sleep(_A_MOMENT)
        raise AssertionError("unreachable")

    async def partition(self, name: StreamRangeId) -> PartitionRow | None:
        """Read a partition's row."""
        key = self._partition + name.encode()
        cells = await self._row(key)
        return partition_of(key, cells) if cells else None

    async def highest_version(self) -> int:
        """Return the highest version that any stream of this partition table may have made; 0 where there is none.

        What cannot be read is passed over: beginning again is the fix.
        """
        highest = 0
        async for key, cells in self._pages("piece|partition"):
            for cell in cells:
                try:
                    if (cell.family, cell.qualifier) == SAVED:
                        highest = max(highest, msgspec.json.decode(cell.value, type=PartitionContent).reserved_up_to)
                    elif cell.family == "piece":
                        highest = max(highest, msgspec.json.decode(cell.value, type=StreamRange).min_version)
                except msgspec.MsgspecError as error:
                    structlog.get_logger().warning("row_not_understood", row=shown(key), error=str(error))
        return highest

    async def streams_elsewhere(self, table: str) -> Mapping[str, Mapping[str, Microseconds]]:
        """Return the other streams of a source table, and when readers of each were last seen, by Bigtable's clock.

        Readers are named as their rows are, `<stream>#reader#<owner>`. Of a stream whose table cannot be read, readers
        stop by themselves.
        """
        tables: dict[str, str] = {}
        seen: dict[str, Microseconds] = {}
        async for key, cells in self._pages("shape|reader"):
            for cell in cells:
                if cell.family == "reader":
                    seen[shown(key)] = Microseconds(cell.timestamp)
                elif (cell.family, cell.qualifier) == ABOUT:
                    with contextlib.suppress(msgspec.MsgspecError):
                        tables[shown(key).partition("#")[0]] = msgspec.json.decode(cell.value, type=About).table
        streams = [stream for stream, of in tables.items() if of == table and stream != self.stream]
        return {one: {row: at for row, at in seen.items() if row.startswith(f"{one}#")} for one in streams}

    async def write_topology(
        self,
        before: TopologyRow | None,
        topology: KeyRangeTopology,
        table: str,
        nonce: str,
        resync: Resync | None = None,
    ) -> bool:
        """Write key ranges in the place of others, if those are still what is there; return whether they were.

        ``resync``: what needs all rows to be read again, of a stream that begins.
        """
        old = (
            {} if before is None else {stream_range.id: stream_range for stream_range in before.topology.stream_ranges}
        )
        new = {stream_range.id: stream_range for stream_range in topology.stream_ranges}
        about = About(FORMAT, table, topology.life, topology.start)
        mutations = [
            _set(VERSION, f"{topology.version:08d} {nonce}".encode()),
            *([] if before else [_set(ABOUT, msgspec.json.encode(about))]),
            *([] if resync is None else [_set(RESYNC, msgspec.json.encode(resync))]),
            *(_delete(("piece", name.encode())) for name in old.keys() - new.keys()),
            *(
                _set(("piece", name.encode()), msgspec.json.encode(new[name]), _BIGTABLES_CLOCK)
                for name in new.keys() - old.keys()
            ),
        ]
        return await self._write(self._topology, VERSION, None if before is None else before.version, mutations)

    async def seen(self) -> InspectedTable | None:
        """Return what was last seen of the source table; None where nothing was, or nothing that can be read."""
        for cell in await self._row(self._topology):
            if (cell.family, cell.qualifier) == SEEN:
                with contextlib.suppress(msgspec.MsgspecError):
                    return msgspec.json.decode(cell.value, type=InspectedTable)
        return None

    async def write_seen(self, before: TopologyRow, seen: InspectedTable) -> bool:
        """Write what was seen beside the key ranges, if those are still what is there; return whether they were."""
        return await self._write(self._topology, VERSION, before.version, [_set(SEEN, msgspec.json.encode(seen))])

    async def write_resync(
        self, before: tuple[bytes, Resync] | None, resync: Resync, noted: Mapping[str, Microseconds] | None = None
    ) -> bool:
        """Write what needs all rows to be read again, if it is still as it was; return whether it was.

        The condition names its writer alone, where it has one: Bigtable takes filters of 20 KB, the cell may have more.
        ``noted``: the notes that are in it now, which go; those that are newer stay.
        """
        expected: bytes | re.Pattern[bytes] | None = None
        if before is not None:
            expected, writer = before[0], before[1].writer
            if _UNIQUE.fullmatch(writer):
                expected = re.compile(f'.*"writer":"{writer}".*'.encode())
        gone = [_delete(("shape", NOTE + kind.encode()), up_to=at) for kind, at in (noted or {}).items()]
        written = [_set(RESYNC, msgspec.json.encode(resync)), *gone]
        return await self._write(self._topology, RESYNC, expected, written)

    async def leave_note(self, kind: str) -> None:
        """Write beside the key ranges that something was found, on no condition: any app profile takes that."""
        await self._mutate(self._topology, [_set(("shape", NOTE + kind.encode()), b"1", _BIGTABLES_CLOCK)])

    async def topic(self) -> str | None:
        """Return the topic that the stream's readers publish to; None where none is remembered."""
        found = [cell.value for cell in await self._row(self._topology) if (cell.family, cell.qualifier) == TOPIC]
        return found[0].decode() if found else None

    async def write_topic(self, topic: str, before: str | None = None) -> bool:
        """Write which topic the stream's readers publish to, if it still is as it was; return whether it was."""
        expected = None if before is None else before.encode()
        return await self._write(self._topology, TOPIC, expected, [_set(TOPIC, topic.encode())])

    async def write_pause(self, before: TopologyRow) -> bool:
        """Write beside the key ranges that the stream is paused, if those are still what is there; return whether."""
        mutations = [_another_version(before), _set(PAUSED, b"1", _BIGTABLES_CLOCK)]
        return await self._write(self._topology, VERSION, before.version, mutations)

    async def write_resumption(self, before: TopologyRow) -> bool:
        """Write that it is no longer paused, if the key ranges are still what is there; return whether they were.

        What waits for other key ranges has waited since now: those could not be read meanwhile.
        """
        waiting = [
            _set(("piece", stream_range.id.encode()), msgspec.json.encode(stream_range), _BIGTABLES_CLOCK)
            for stream_range in before.topology.stream_ranges
            if not stream_range.is_readable
        ]
        mutations = [_another_version(before), _delete(PAUSED), *waiting]
        return await self._write(self._topology, VERSION, before.version, mutations)

    async def write_partition(self, name: StreamRangeId, before: Lease | None, row: PartitionRow) -> bool:
        """Write a partition's row, if its lease is still as it was; return whether it was."""
        mutations = [_set(LEASE, row.lease.encoded()), _set(SAVED, msgspec.json.encode(row.content))]
        expected = None if before is None else before.encoded()
        return await self._write(self._partition + name.encode(), LEASE, expected, mutations)

    async def delete_partition(self, name: StreamRangeId, before: Lease) -> bool:
        """Delete a partition's row, if its lease is still as it was; return whether it was."""
        return await self._write(self._partition + name.encode(), LEASE, before.encoded(), [_delete_row()])

    async def attend(self, owner: str, nonce: str) -> None:
        """Record that a reader is there. No other reader writes that row; others delete it, on condition."""
        mutations = [_delete(PRESENT), _set(PRESENT, nonce.encode(), _BIGTABLES_CLOCK)]
        await self._mutate(self._reader + owner.encode(), mutations)

    async def leave(self, owner: str) -> None:
        """Say that it is no longer there."""
        await self._mutate(self._reader + owner.encode(), [_delete_row()])

    async def forget_reader(self, owner: str, nonce: bytes) -> bool:
        """Delete what another reader left behind, if it has not come back."""
        return await self._write(self._reader + owner.encode(), PRESENT, nonce, [_delete_row()])

    async def snapshot(self) -> Sequence[Cell]:
        """Read the row of the stream's snapshot; no cells where there is none."""
        return await self._row(self._snapshot)

    async def write_snapshot(self, before: bytes | None, version: bytes, cells: Mapping[Column, bytes | None]) -> bool:
        """Write cells of that row (None deletes one), if its version is still as it was; return whether it was."""
        mutations = [_set(VERSION, version)]
        mutations += [_delete(column) if value is None else _set(column, value) for column, value in cells.items()]
        return await self._write(self._snapshot, VERSION, before, mutations)

    async def _mutate(self, key: bytes, mutations: Sequence[Any]) -> None:
        request = _MUTATE.request(table_name=self.table.name, app_profile_id=self.table.app_profile, row_key=key)
        request.mutations.extend(mutations)
        await self._channels.call(_MUTATE, self.table, request)

    async def _write(
        self, key: bytes, column: Column, expected: bytes | re.Pattern[bytes] | None, mutations: Sequence[Any]
    ) -> bool:
        request = _CHECK_AND_MUTATE.request(
            table_name=self.table.name, app_profile_id=self.table.app_profile, row_key=key
        )
        conditions = request.predicate_filter.chain.filters
        family, qualifier = column
        chosen = conditions.add().column_range_filter
        chosen.family_name, chosen.start_qualifier_closed, chosen.end_qualifier_closed = family, qualifier, qualifier
        conditions.add().cells_per_column_limit_filter = 1
        if expected is None:
            request.false_mutations.extend(mutations)
        else:
            if isinstance(expected, bytes):
                value = conditions.add().value_range_filter
                value.start_value_closed, value.end_value_closed = expected, expected
            else:
                conditions.add().value_regex_filter = expected.pattern
            request.true_mutations.extend(mutations)
        response = await self._channels.call(_CHECK_AND_MUTATE, self.table, request)
        return bool(response.predicate_matched) == (expected is not None)

    async def _row(self, key: bytes) -> Sequence[Cell]:
        request = READ_ROWS.request(table_name=self.table.name, app_profile_id=self.table.app_profile)
        request.rows.row_keys.append(key)
        found: Sequence[Cell] = ()
        async for _key, cells in self._rows(request):
            found = cells
        return found

    async def _pages(self, families: str) -> AsyncGenerator[tuple[bytes, list[Cell]], None]:
        """Yield the rows of all streams, with their cells in families, some in each call."""
        last = b""
        while True:
            request = READ_ROWS.request(
                table_name=self.table.name, app_profile_id=self.table.app_profile, rows_limit=_PAGE
            )
            if last:
                request.rows.row_ranges.add(start_key_open=last)
            filters = request.filter.chain.filters
            filters.add(family_name_regex_filter=families)
            filters.add(cells_per_column_limit_filter=1)
            found = 0
            async with aclosing(read_rows(self._channels, self.table, request, _PAGE_TIMEOUT)) as rows:
                async for last, cells in rows:
                    found += 1
                    yield last, cells
            if found < _PAGE:
                return

    async def _rows(self, request: Any) -> AsyncGenerator[tuple[bytes, list[Cell]], None]:
        request.filter.cells_per_column_limit_filter = 1
        async with aclosing(read_rows(self._channels, self.table, request)) as rows:
            async for row in rows:
                yield row


def _set(column: Column, value: bytes, timestamp: int = _REPLACED) -> Any:
    mutation = _MUTATE.request().mutations.add()
    cell = mutation.set_cell
    cell.family_name, cell.column_qualifier, cell.timestamp_micros, cell.value = *column, timestamp, value
    return mutation


def _another_version(before: TopologyRow) -> Any:
    """Return what keeps a request that waits for the version that was read from ever being done: no key range changes.

    What a pause or a resumption is conditional on is there once, so a late one does not undo what was asked for since.
    """
    return _set(VERSION, f"{before.topology.version:08d} {uuid.uuid4().hex}".encode())


def _delete(column: Column, *, up_to: Microseconds | None = None) -> Any:
    mutation = _MUTATE.request().mutations.add()
    mutation.delete_from_column.family_name, mutation.delete_from_column.column_qualifier = column
    if up_to is not None:  # the end is exclusive, and cells have milliseconds
        mutation.delete_from_column.time_range.end_timestamp_micros = up_to + 1_000
    return mutation


def _delete_row() -> Any:
    mutation = _MUTATE.request().mutations.add()
    mutation.delete_from_row.SetInParent()
    return mutation
