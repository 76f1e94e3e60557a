"""The first start of a stream: remembered once, whatever becomes of the answer."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest

from services.bigtable_reader.app.stream.first_start import begin
from services.bigtable_reader.core.stream.partitions import Resume
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import FakeChangeStream
from tests.fakes.bigtable_table import Bigtable


class Unanswered(FakePartitionStore):
    """Remembers the first key ranges, and the answer is lost."""

    lost = 2

    async def begin(self, ranges: Sequence[KeyRange], start: Microseconds, *, mirrored: bool = True) -> bool:
        """Remember them."""
        begun = await super().begin(ranges, start, mirrored=mirrored)
        if self.lost:
            self.lost -= 1
            raise TransientError("DEADLINE_EXCEEDED")
        return begun


async def nothing() -> None:
    """Ask for no snapshot, keep no topic."""


async def start(
    store: FakePartitionStore, resume: Resume = "new", after: Callable[[], Awaitable[None]] = nothing
) -> None:
    """Start a reader of a table with two partitions."""
    stream = FakeChangeStream(Bigtable(b"m"))
    await begin(stream, store, Stop(), name="weather", resume=resume, asked=None, before=nothing, after=after)


async def test_a_new_stream_that_we_have_begun_ourselves_is_not_refused_because_the_answer_was_lost() -> None:
    table = PartitionTable()
    store = Unanswered(table, "reader", timedelta(seconds=10))
    await start(store)
    assert table.topology is not None
    ranges = [stream_range.range for stream_range in table.topology.stream_ranges]
    assert ranges == [KeyRange(b"", b"m"), KeyRange(b"m", b"")]
    with pytest.raises(MisconfiguredError, match="RESUME=new"):  # another process, another day
        await start(store)


@pytest.mark.parametrize(("known", "resume"), [(False, "new"), (True, "resume-or-fail")])
async def test_what_follows_is_done_again_by_itself_for_a_new_stream_is_known_by_then(
    known: bool, resume: Resume
) -> None:
    table = PartitionTable()
    store = FakePartitionStore(table, "reader", timedelta(seconds=10))
    if known:
        await start(store)
    answers = [True, False, False]

    async def after() -> None:
        assert table.topology is not None, "the key ranges come first"
        if not answers.pop():
            raise TransientError("UNAVAILABLE")

    await start(store, resume, after)
    assert answers == []


@pytest.mark.parametrize("error", [None, TransientError("UNAVAILABLE"), MisconfiguredError("made-up", "no right")])
async def test_a_start_that_is_refused_is_not_counted_among_the_readers_that_share_the_stream(
    error: Exception | None,
) -> None:
    table = PartitionTable()

    class Store(FakePartitionStore):
        """Says that it leaves, to a table that may not answer."""

        async def leave(self) -> None:
            await super().leave()
            if error is not None:
                raise error

    async def refuse() -> None:
        raise MisconfiguredError("made-up", "another topic")

    with pytest.raises(MisconfiguredError, match="another topic"):
        await start(Store(table, "reader", timedelta(seconds=10)), after=refuse)
    assert table.readers == {}


@pytest.mark.parametrize("resume", ["new", "resume-or-new", "resume-or-fail"])
async def test_a_stream_whose_key_ranges_were_deleted_is_not_begun_again_for_that_would_skip_changes(
    resume: Resume,
) -> None:
    table = PartitionTable()
    store = FakePartitionStore(table, "reader", timedelta(seconds=10))
    await start(store)
    assert await store.claim((await store.survey()).stream_ranges)
    table.topology = None
    with pytest.raises(MisconfiguredError, match="its row was deleted"):  # as each restart of the reader finds
        await start(store, resume)
    assert table.topology is None
