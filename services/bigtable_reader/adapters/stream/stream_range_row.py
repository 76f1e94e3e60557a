"""The row of all key ranges of a stream, changed as a whole: read, decided, and written if it is still the same."""

import uuid
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from services.bigtable_reader.adapters.stream.partition_cells import TopologyRow
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.topic_cell import refuse_other_topic
from services.bigtable_reader.core.schema.resync import Resync
from services.bigtable_reader.core.stream import topology as shape
from services.bigtable_reader.core.stream.partitions import RESTART_WITH_ALL_ROWS
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds
from services.bigtable_reader.core.stream.topology import KeyRangeTopology, Reshaped
from services.bigtable_reader.ports import Tended
from shared.contracts.errors import MisconfiguredError, TransientError

_ATTEMPTS: Final = 10
"""How often a change is made again because another's came first."""


class StreamRangeRow:
    """The key ranges of the stream of one table. ``source``: its full name.

    ``topic``: to which their owner publishes; None, if to none.
    """

    def __init__(self, rows: PartitionRows, source: str, topic: str | None = None) -> None:
        self.source = source
        self._topic = topic
        self._rows = rows
        self._log = structlog.get_logger().bind(change_stream=rows.stream)
        self._done = Tended()

    async def begin(
        self, ranges: Sequence[KeyRange], start: Microseconds, now: Microseconds, resync: Resync | None
    ) -> bool:
        """Write the first key ranges, and what needs all rows to be read, unless there are any; return whether so."""
        min_version = max(now, await self._rows.highest_version() + 1)  # above every version of an earlier life
        life = uuid.uuid4().hex[:8]
        try:
            first = shape.begin(ranges, life=life, start=start, min_version=min_version)
        except ValueError as error:
            raise TransientError(f"the first partitions of {self.source} are no whole: {error}") from error
        try:
            begun = await self._rows.write_topology(None, first, self.source, life, resync)
        except TransientError:
            found = await self.find()
            if found is None:
                raise
            begun = found.topology.life == life
        if begun:
            self._log.info("stream_begun", stream_ranges=len(first.stream_ranges), life=life)
        return begun

    async def find(self) -> TopologyRow | None:
        """Return the key ranges; None where the stream is not known. MisconfiguredError as of `check`."""
        found = await self._rows.topology()
        if found is not None:
            self.check(found)
        return found

    async def known(self) -> TopologyRow:
        """Return the key ranges of a stream that has begun."""
        found = await self.find()
        if found is None:
            raise MisconfiguredError(
                "stream-row-deleted",
                f"the partition table {self._rows.table.name} no longer knows {self._rows.stream}: its row was "
                f"deleted. {RESTART_WITH_ALL_ROWS}",
            )
        return found

    async def change(self, decide: Callable[[TopologyRow], Reshaped | None]) -> TopologyRow:
        """Change the key ranges until there is nothing left to change; return them as they are then."""
        for _attempt in range(_ATTEMPTS):
            before = await self.known()
            reshaped = decide(before)
            if reshaped is None:
                return before
            nonce = uuid.uuid4().hex
            try:
                written = await self._rows.write_topology(before, reshaped.topology, self.source, nonce)
            except TransientError:
                if not (await self.known()).version.endswith(nonce.encode()):
                    raise
                written = True
            if written:
                self._count(reshaped, before.topology)
        raise TransientError(f"the key ranges of {self._rows.stream} were changed by others, again and again")

    async def pause(self, *, paused: bool) -> bool:
        """Let the stream be paused, or not; return whether that was new."""
        for _attempt in range(_ATTEMPTS):
            before = await self.known()
            if (before.paused_since is not None) is paused:
                return False
            try:
                written = await (self._rows.write_pause(before) if paused else self._rows.write_resumption(before))
            except TransientError:
                if ((await self.known()).paused_since is not None) is not paused:
                    raise
                written = True
            if written:
                return True
        raise TransientError(f"the key ranges of {self._rows.stream} were changed by others, again and again")

    def check(self, found: TopologyRow) -> None:
        """Raise MisconfiguredError if key ranges are another table's, or their readers publish to another topic.

        That may have been changed while this reader stood still.
        """
        if found.table != self.source:
            raise MisconfiguredError(
                "stream-name-of-another-table",
                f"change stream {self._rows.stream} in {self._rows.table.name} is of {found.table}, not of "
                f"{self.source}: give every table a CHANGE_STREAM_NAME of its own",
            )
        if self._topic is not None and found.topic is not None:
            refuse_other_topic(self._rows, found.topic, self._topic)

    def done(self) -> Tended:
        """Return what was done to the key ranges since the last time."""
        done, self._done = self._done, Tended()
        return done

    def _count(self, reshaped: Reshaped, before: KeyRangeTopology) -> None:
        done = self._done
        self._done = Tended(
            done.split + reshaped.split, done.merged + reshaped.merged, done.reconciled + reshaped.reconciled
        )
        old, new = {p.id: p for p in before.stream_ranges}, {p.id: p for p in reshaped.topology.stream_ranges}
        self._log.info(
            "key_ranges_changed",
            gone=sorted(str(old[name].range) for name in old.keys() - new.keys()),
            new=sorted(str(new[name].range) for name in new.keys() - old.keys()),
            split=reshaped.split,
            merged=reshaped.merged,
            reconciled=reshaped.reconciled,
        )
