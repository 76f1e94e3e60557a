"""One partition: what its saved position says, how a stream goes on after a break, and how it ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from functools import partial

import msgspec
import pytest
from structlog.testing import capture_logs

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition, BigtableReaderOptions
from services.bigtable_reader.app.stream.partition_reader import BigtablePartitionReader, DataChangePublisher
from services.bigtable_reader.app.stream.read_back import ReadBack
from services.bigtable_reader.core.stream.partitions import StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import (
    ALL_KEYS,
    BigtableStreamQuery,
    CloseStream,
    Heartbeat,
    KeyRange,
    Microseconds,
    Position,
    RangeToken,
    StreamRecord,
)
from services.bigtable_reader.core.stream.sharing import has_reached
from services.bigtable_reader.ports import PositionLostError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.owned_partition import read_to_the_end
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import FakeDeadLetterSink, FakeRows
from tests.fakes.bigtable_table import EPOCH, Bigtable, VirtualClock
from tests.fakes.reader_metrics import BigtableMetrics
from tests.unit.bigtable_reader.readings import a_record, image_maker, outputs
from tests.unit.reading.toy_topic import ToyPublisher, ToyTopic

Answer = StreamRecord | list[StreamRecord] | Exception


class ScriptedStream:
    """What each query of a partition is told, one after the other; then nothing more."""

    def __init__(self, *answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.queries: list[BigtableStreamQuery] = []

    async def initial_partitions(self) -> Sequence[KeyRange]:
        """Return the one partition."""
        return [ALL_KEYS]

    async def read(self, query: BigtableStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the next answer, each record alone but for those of a list."""
        self.queries.append(query)
        for answer in self.answers.pop(0) if self.answers else ():
            if isinstance(answer, Exception):
                raise answer
            yield answer if isinstance(answer, list) else [answer]
        await asyncio.sleep(1_000)


def a_read_back(publisher: ToyPublisher, failures: list[BaseException | None]) -> ReadBack:
    return ReadBack(
        FakeRows(Bigtable()),
        image_maker(),
        ConfirmedPublishing(publisher, BigtableMetrics(), failures.append),
        DeadLettering(FakeDeadLetterSink(), VirtualClock()),
        BigtableMetrics(),
    )


class Reading:
    """A partition that is read, as a change log: every record is published at once."""

    def __init__(self, *answers: Sequence[Answer], end: Microseconds | None = None, mirror: bool = False) -> None:
        self.stream = ScriptedStream(*answers)
        self.topic = ToyTopic(confirms=False)
        publisher = ToyPublisher(self.topic)
        self.dead_letters = FakeDeadLetterSink()
        self.table = PartitionTable()
        self.store = FakePartitionStore(self.table, "reader", timedelta(seconds=10))
        self.failures: list[BaseException | None] = []
        self.end = end
        self.trusted_for = 1_000_000.0
        self._reader = BigtablePartitionReader(
            self.stream,
            self.store,
            DataChangePublisher(
                ConfirmedPublishing(publisher, BigtableMetrics(), self.failures.append),
                outputs(images=mirror, entries=not mirror),
                a_read_back(publisher, self.failures) if mirror else None,
                DeadLettering(self.dead_letters, VirtualClock()),
                VirtualClock(),
                lambda: None,
            ),
            BigtableMetrics(),
            BigtableReaderOptions(owner="reader", lease=timedelta(seconds=10), heartbeat=timedelta(seconds=5), end=end),
        )

    async def begin(self, *ranges: KeyRange, reconciled: bool = False, again: int = 0) -> "asyncio.Task[None]":
        """Claim the first key range (of all keys, unless ranges are named) and have it read."""
        await self.store.begin(ranges or [ALL_KEYS], EPOCH)
        assert self.table.topology is not None
        if reconciled:
            first, *rest = self.table.topology.stream_ranges
            stream_range = StreamRange(
                id=StreamRangeId("waited"),
                range=first.range,
                position=Position((RangeToken(first.range, "old"),)),
                min_version=0,
                low_watermark=EPOCH,
                reconciled=True,
                again=again,
            )
            self.table.become(msgspec.structs.replace(self.table.topology, stream_ranges=(stream_range, *rest)))
        await self.store.survey()
        (partition,) = await self.store.claim(self.table.topology.stream_ranges[:1])
        self.owned = BigtableOwnedPartition(partition, self.end)
        self.owned.trusted_until = self.trusted_for
        stop = Stop()
        task = asyncio.create_task(read_to_the_end(self.owned, partial(self._reader.read, self.owned, stop), stop))
        await asyncio.sleep(0.1)
        return task

    async def confirm(self, number: int) -> None:
        """Confirm what was published as the ``number``th, from 0."""
        list(self.topic.waiting.values())[number].set_result(None)
        await asyncio.sleep(0.1)

    def saved(self) -> str | None:
        """Return the token of the position that would be saved now."""
        tokens = self.owned.progress(0).position.tokens
        return tokens[0].token if tokens else None


async def test_the_position_is_before_a_record_whose_dead_letter_is_not_confirmed() -> None:
    reading = Reading([a_record(b"\xff", 1), Heartbeat("h", Microseconds(EPOCH + 9))])
    reading.dead_letters.open.clear()
    await reading.begin()
    assert (reading.dead_letters.kept, reading.saved(), reading.owned.prefix.watermark) == ([], None, EPOCH)
    reading.dead_letters.open.set()
    await asyncio.sleep(0.1)
    assert (len(reading.dead_letters.kept), reading.saved()) == (1, "h")


async def test_what_comes_together_is_published_together_and_a_heartbeat_keeps_its_place_in_between() -> None:
    heartbeat = Heartbeat("h", Microseconds(EPOCH + 9))
    reading = Reading([[a_record(b"a", 1), a_record(b"b", 2), heartbeat, a_record(b"c", 3), a_record(b"d", 4)]])
    await reading.begin()
    assert len(reading.topic.waiting) == 2
    await reading.confirm(1)
    assert reading.saved() is None
    await reading.confirm(0)
    assert reading.saved() == "t4"
    assert reading.owned.prefix.watermark == EPOCH + 9
    assert reading.owned.prefix.outstanding == 0


@pytest.mark.parametrize("broken", [TransientError("UNAVAILABLE"), CloseStream(13, "INTERNAL")])
async def test_after_a_break_it_goes_on_behind_what_was_read_though_that_is_not_confirmed(
    broken: StreamRecord | Exception,
) -> None:
    reading = Reading([a_record(b"a", 1), broken], [a_record(b"b", 2)])
    await reading.begin()
    await asyncio.sleep(20)
    assert reading.stream.queries[1].position == Position((RangeToken(ALL_KEYS, "t1"),))
    assert reading.saved() is None
    await reading.confirm(1)
    assert reading.saved() is None
    await reading.confirm(0)
    assert reading.saved() == "t2"


async def test_an_end_that_names_no_children_is_the_end_only_where_one_was_asked_for() -> None:
    end = Microseconds(EPOCH + 60_000_000)
    reading = Reading([a_record(b"a", 1), CloseStream(0, "")], end=end)
    task = await reading.begin()
    await reading.confirm(0)
    await task
    (row,) = reading.table.rows.values()
    assert row.low_watermark == end + 1
    assert row.state == "RELEASED"

    live = Reading([CloseStream(0, "")], [a_record(b"a", 1)])
    await live.begin()
    await asyncio.sleep(20)
    assert len(live.stream.queries) == 2


async def test_an_estimate_that_is_past_the_end_is_not_the_end() -> None:
    """A record of before may still come: only the stream says that none will."""
    end = Microseconds(EPOCH + 60_000_000)
    reading = Reading([Heartbeat("h", Microseconds(end + 5_000_000))], end=end)
    await reading.begin()
    assert reading.owned.progress(0).low_watermark == end


async def test_a_position_that_is_lost_stops_the_reader_and_nothing_of_it_is_given_up() -> None:
    reading = Reading([PositionLostError("made-up", "too old")])
    task = await reading.begin()
    with pytest.raises(MisconfiguredError, match="too old"):
        await task
    assert len(reading.stream.queries) == 1


async def test_what_was_reconciled_begins_at_a_time_where_its_token_is_refused_and_only_once() -> None:
    reading = Reading([PositionLostError("made-up", "not known")], [PositionLostError("made-up", "not known")])
    task = await reading.begin(reconciled=True)
    with pytest.raises(MisconfiguredError, match="not known"):
        await task
    first, second = (query.position for query in reading.stream.queries)
    assert first.tokens
    assert second.start is not None


async def test_what_was_reconciled_and_is_refused_days_later_begins_at_where_it_was_by_then() -> None:
    """It is not lost, though the time at which it was claimed is longer ago than the stream keeps records."""
    now = Microseconds(EPOCH + 8 * 86_400_000_000)
    refused = PositionLostError("made-up", "not known")
    reading = Reading([Heartbeat("h", Microseconds(now - 5_000_000)), TransientError("UNAVAILABLE")], [refused])
    reading.table.now = lambda: now
    await reading.begin(reconciled=True)
    await asyncio.sleep(30)
    assert reading.stream.queries[2].position.start == now - 5_000_000 - 3_600_000_000


async def test_what_restarts_from_a_time_has_not_reached_the_end_by_an_estimate() -> None:
    end = Microseconds(EPOCH + 60_000_000)
    answers: Sequence[Answer] = [Heartbeat("h", Microseconds(end + 5_000_000)), TransientError("UNAVAILABLE")]
    reading = Reading(answers, [PositionLostError("made-up", "not known")], end=end)
    reading.table.now = lambda: Microseconds(end + 6_000_000)
    await reading.begin(reconciled=True)
    await asyncio.sleep(30)
    survey = await reading.store.survey()
    assert not has_reached(survey.stream_ranges[0], survey, end)


async def test_what_was_reconciled_and_is_no_partition_waits_again_with_its_token() -> None:
    left, right = KeyRange(b"", b"m"), KeyRange(b"m", b"")
    reading = Reading([PositionLostError("made-up", "not a partition")])
    task = await reading.begin(left, right, reconciled=True)
    await task
    assert reading.owned.over
    assert len(reading.stream.queries) == 1
    assert reading.table.topology is not None
    waits, _other = reading.table.topology.stream_ranges
    assert (waits.range, waits.target, waits.position) == (left, ALL_KEYS, Position((RangeToken(left, "old"),)))
    assert waits.again == 1

    # Waiting has not helped: it is no reason to wait for ever.
    often = Reading([PositionLostError("made-up", "not known")], [])
    await often.begin(left, right, reconciled=True, again=3)
    await asyncio.sleep(20)
    assert [bool(query.position.tokens) for query in often.stream.queries] == [True, False]


async def test_a_partition_whose_lease_is_over_by_the_clock_is_read_no_more_though_this_call_has_read_nothing() -> None:
    reading = Reading(*[[a_record(b"a", 1)] for _call in range(9)], mirror=True)
    reading.trusted_for = 0.0
    with capture_logs() as logs:
        task = await reading.begin()
        await asyncio.wait([task], timeout=600)
    assert [line["event"] for line in logs].count("lease_lost") == 1
    assert task.done()
    assert len(reading.stream.queries) == 1
    assert reading.owned.over
