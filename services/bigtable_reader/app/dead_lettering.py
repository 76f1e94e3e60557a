"""Dead letters of what no change can be made of; the other rows go on."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import structlog

from services.bigtable_reader.core.changes.refused import RefusedChange
from services.bigtable_reader.ports import DeadLetterSink, VersionClock
from shared.contracts.change_batch import encode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.row_id import key_text
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.portions import cut

_MICROSECOND: Final = 1_000  # in nanoseconds
_ROOM: Final = 32_000_000
"""Bytes, about, that may wait for the dead-letter topic; `begin` waits while there are more."""
_AT_ONCE: Final = 4_000_000
"""Bytes, about, that are made dead letters at a time; more where a single one is larger."""


class DeadLettering:
    """Keeps dead letters of what was refused: each a change batch of its own, with all that was read.

    The text of a dead letter is several times as large as what it is of, so it is made when it is sent. What does not
    fit into a dead letter is left out and counted.
    """

    def __init__(self, dead_letters: DeadLetterSink, clock: VersionClock) -> None:
        self._dead_letters = dead_letters
        self._clock = clock
        self._bytes = 0
        self._freed = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    async def begin(self, refused: Sequence[RefusedChange]) -> asyncio.Task[None]:
        """Begin to keep what was refused, once there is room; the task ends when all are confirmed."""
        while self._bytes >= _ROOM:
            self._freed.clear()
            await self._freed.wait()
        size = sum(one.outstanding_bytes for one in refused)
        self._bytes += size

        def done(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            self._bytes -= size
            self._freed.set()

        task = asyncio.create_task(self._keep(refused), name="dead-letter")
        self._under_way.add(task)
        task.add_done_callback(done)
        return task

    @property
    def under_way(self) -> Collection[asyncio.Task[None]]:
        """Return what was begun and has not ended."""
        return self._under_way

    async def drain(self) -> None:
        """Return when nothing is under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def end(self) -> None:
        """Cancel what is under way, and return when all of it has ended."""
        for task in self._under_way:
            task.cancel()
        await self.drain()

    async def _keep(self, refused: Sequence[RefusedChange]) -> None:
        for some in cut(refused, lambda one: one.outstanding_bytes, _AT_ONCE):
            dead_letters = [self._dead_letter(one) for one in some]
            for dead_letter in dead_letters:
                structlog.get_logger().warning(
                    "change_dead_lettered",
                    reason=dead_letter.reason.value,
                    table=dead_letter.table,
                    payload_bytes=dead_letter.payload_bytes,
                )
            await self._dead_letters.keep(dead_letters)

    def _dead_letter(self, refused: RefusedChange) -> DeadLetter:
        header, change = refused.header, refused.change
        if refused.left_out is None:
            data = encode_batch(header, [refused.whole()])
        else:
            data = msgspec.json.encode(refused.content)
        return DeadLetter(
            data=data,
            attributes={
                "source": header.source,
                "table": header.table,
                "change_count": "1",
                "format": str(header.format),
                "first_commit_timestamp": change.commit_timestamp,
                "last_commit_timestamp": change.commit_timestamp,
            },
            ordering_key=refused.ordering_key,
            reason=refused.reason,
            detail=refused.detail,
            failed_at=Nanoseconds(self._clock.now() * _MICROSECOND),
            failed_in="bigtable_reader",
            table=header.table,
            key=key_text(header.table, header.key_types(), change.key.encode()),
            sequence=change.sequence,
            commit_timestamp=change.commit_timestamp,
            payload_bytes=refused.left_out,
        )
