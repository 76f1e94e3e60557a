"""Answers the control calls; `control_messages` documents each."""

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc
import msgspec

from emulators.bigtable_streams import control_messages as messages
from emulators.bigtable_streams.change_log import ChangeLog
from emulators.bigtable_streams.faults import Fault, Faults
from emulators.bigtable_streams.garbage import Garbage
from emulators.bigtable_streams.profiles import Profiles
from emulators.bigtable_streams.protocol import Mutation
from emulators.bigtable_streams.refusals import invalid, precondition
from emulators.bigtable_streams.replication import Replication
from emulators.bigtable_streams.serving import Streams
from emulators.bigtable_streams.tables import Tables


class AdvancingClock:
    """Time in microseconds since the epoch; it never stands still or goes back."""

    def __init__(self) -> None:
        self._ahead = 0
        self._last = 0

    def now(self) -> int:
        """Return the time; a later call returns a later one."""
        self._last = max(time.time_ns() // 1_000 + self._ahead, self._last + 1)
        return self._last

    def advance(self, seconds: float) -> None:
        """Put the clock forward."""
        if seconds < 0:
            raise ValueError("a clock does not go back")
        self._ahead += round(seconds * 1_000_000)


Answering = Callable[[bytes], Coroutine[Any, Any, bytes]]
Handler = Callable[[Any], Coroutine[Any, Any, msgspec.Struct]]


@dataclass(frozen=True, slots=True)
class Served:
    """What the front serves: tables, application profiles, and the streams that are open."""

    tables: Tables
    profiles: Profiles
    streams: Streams


class Control:
    """The calls that the front serves and Bigtable does not."""

    def __init__(
        self, served: Served, faults: Faults, clock: AdvancingClock, garbage: Garbage, replication: Replication
    ) -> None:
        self._tables = served.tables
        self._profiles = served.profiles
        self._streams = served.streams
        self._faults = faults
        self._clock = clock
        self._garbage = garbage
        self._replication = replication

    def methods(self) -> Mapping[str, Answering]:
        """Return the gRPC methods that serve the calls."""
        handlers: tuple[tuple[type[msgspec.Struct], Handler], ...] = (
            (messages.Split, self._of_stream(lambda log, asked: log.split(asked.at))),
            (messages.Merge, self._of_stream(lambda log, asked: log.merge(asked.at))),
            (messages.Repartition, self._of_stream(lambda log, asked: log.repartition(asked.starts))),
            (messages.Move, self._of_stream(lambda log, asked: log.move(asked.at))),
            (messages.Trim, self._of_stream(lambda log, asked: log.trim(asked.before))),
            (messages.StallWatermark, self._of_stream(lambda log, asked: log.stall(asked.stalled))),
            (messages.CutStreams, self._cut),
            (messages.ServeStreams, self._serve),
            (messages.Replicate, self._replicate),
            (messages.CollectGarbage, self._collect),
            (messages.AddCluster, self._add_cluster),
            (messages.AddFault, self._add_fault),
            (messages.ClearFaults, self._clear_faults),
            (messages.AdvanceClock, self._advance),
            (messages.Describe, self._describe),
        )
        return {f"{messages.SERVICE}{kind.__name__}": _answering(kind, handler) for kind, handler in handlers}

    async def _log(self, table: str) -> ChangeLog:
        log = (await self._tables.get(table)).log
        if log is None:
            raise precondition(f"Change stream is not enabled for table {table}")
        return log

    def _of_stream(self, done: Callable[[ChangeLog, Any], bool | None]) -> Handler:
        """Return the handler of a call that does one thing to the change stream of a table."""

        async def handler(asked: Any) -> messages.Done:
            return messages.Done(done(await self._log(asked.table), asked) is not False)

        return handler

    async def _cut(self, asked: messages.CutStreams) -> messages.Done:
        if asked.status not in grpc.StatusCode.__members__:
            raise invalid(f"not a gRPC status: {asked.status}")
        cut = [stream for stream in self._streams.open if stream.table == asked.table]
        for stream in cut:
            stream.cut_after, stream.cut_status = asked.after_messages, grpc.StatusCode[asked.status]
        (await self._log(asked.table)).ring()
        return messages.Done(bool(cut))

    async def _serve(self, asked: messages.ServeStreams) -> messages.Done:
        limits = {name: getattr(asked, name) for name in ("value_bytes", "message_bytes", "message_chunks")}
        try:
            self._streams.limits = replace(
                self._streams.limits, **{name: value for name, value in limits.items() if value is not None}
            )
        except ValueError as error:
            raise invalid(str(error)) from error
        if asked.held is not None:
            self._streams.paused = asked.held
        if asked.seconds_per_change is not None:
            self._streams.seconds_per_change = asked.seconds_per_change
        for table in self._tables.all():
            if table.log is not None:
                table.log.ring()
        return messages.Done()

    async def _replicate(self, asked: messages.Replicate) -> messages.Done:
        table = await self._tables.get(asked.table)
        cluster = self._profiles.cluster(table.instance, asked.cluster)
        if asked.tiebreaker is not None:
            cluster = replace(cluster, tiebreaker=asked.tiebreaker)
        mutations = [Mutation.FromString(each) for each in asked.mutations]
        await self._replication.arrive(table, asked.row_key, mutations, asked.commit, cluster)
        return messages.Done()

    async def _collect(self, asked: messages.CollectGarbage) -> messages.Collected:
        return messages.Collected(*await self._garbage.collect(await self._tables.get(asked.table)))

    async def _add_cluster(self, asked: messages.AddCluster) -> messages.Done:
        self._profiles.cluster(asked.instance, asked.cluster)
        return messages.Done()

    async def _add_fault(self, asked: messages.AddFault) -> messages.FaultAdded:
        try:
            return messages.FaultAdded(self._faults.add(Fault(**msgspec.structs.asdict(asked))))
        except ValueError as error:
            raise invalid(str(error)) from error

    async def _clear_faults(self, asked: messages.ClearFaults) -> messages.Done:
        self._faults.clear(asked.fault)
        return messages.Done()

    async def _advance(self, asked: messages.AdvanceClock) -> messages.Done:
        self._clock.advance(asked.seconds)
        return messages.Done()

    async def _describe(self, asked: messages.Describe) -> messages.Description:
        log = (await self._tables.get(asked.table)).log
        return messages.Description(
            enabled=log is not None,
            now=self._clock.now(),
            since=0 if log is None else log.since,
            partitions=[] if log is None else [(each.range.start, each.range.end) for each in log.partitions],
            records=0 if log is None else log.next_index,
            streams=[
                messages.OpenStreamDescription(stream.range.start, stream.range.end, stream.behind)
                for stream in self._streams.open
                if stream.table == asked.table
            ],
            streams_opened=self._streams.opened,
            faults_met=self._faults.met,
        )


def _answering(kind: type[msgspec.Struct], handler: Handler) -> Answering:
    decoder = msgspec.json.Decoder(kind)

    async def answer(data: bytes) -> bytes:
        try:
            asked = decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise invalid(str(error)) from error
        return msgspec.json.encode(await handler(asked))

    return answer
