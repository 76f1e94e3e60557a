"""Partitions, the publisher and one budget in virtual time: memory is bounded, and whatever hangs, the others go on."""

import asyncio
from collections import deque
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.pubsub.dead_letters import AsyncDeadLetterPublisher
from shared.pubsub.publisher import BatchPublisher, PublisherOptions
from shared.reading.byte_budget import ByteBudget
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.fakes.pubsub_channel import SlowChannel
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples

STUCK = "planes/stuck"


class Partition:
    """Records that come as fast as there is room for them, and are published one after the other."""

    def __init__(self, budget: ByteBudget, publisher: BatchPublisher, key: str, sizes: list[int]) -> None:
        self._share = budget.share()
        self._publisher = publisher
        self._key = key
        self._sizes = deque(sizes)
        self._read: deque[int] = deque()
        self._has_moved = asyncio.Event()

    async def run(self) -> None:
        """Read and publish everything, until all is confirmed."""
        with self._share:
            reading = asyncio.create_task(self._read_ahead())
            futures = []
            try:
                while self._sizes or self._read:
                    if not self._read:
                        await self._moved()
                        continue
                    size = self._read.popleft()
                    change = a_change(name="x" * size)
                    futures.append(await self._publisher.publish(a_header(), [(self._key, change)]))
                    self._share.add(-size)
                    self._has_moved.set()
                await asyncio.gather(*futures)
            finally:
                reading.cancel()

    async def _read_ahead(self) -> None:
        while self._sizes:
            if not self._share.has_room:
                await self._moved()
                continue
            self._share.add(self._sizes[0])
            self._read.append(self._sizes.popleft())
            self._has_moved.set()
            await asyncio.sleep(0)

    async def _moved(self) -> None:
        self._has_moved.clear()
        await self._has_moved.wait()


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3_000), min_size=1, max_size=30), min_size=1, max_size=30),
    st.integers(16_000, 100_000),
)
@example([[3_000] * 30] * 30, 20_000)
@example([[1_000]] * 500, 16_000)
def test_what_is_read_and_not_confirmed_stays_within_the_budget_and_a_stuck_key_holds_up_its_own_partition_only(
    sizes: list[list[int]], most: int
) -> None:
    async def scenario() -> None:
        channel: Any = SlowChannel(stuck=STUCK)
        stop = Stop()
        dead_letters: Any = AsyncDeadLetterPublisher(channel, "projects/p/topics/dead", stop)
        budget = ByteBudget(most // 2)
        options = PublisherOptions(failed_in="a test", outstanding_bytes=most // 2, last_chance=timedelta(0))
        async with BatchPublisher(channel, "projects/p/topics/t", dead_letters, stop, options) as publisher:
            stuck = asyncio.create_task(Partition(budget, publisher, STUCK, [3_000] * 100).run())
            others = [
                asyncio.create_task(Partition(budget, publisher, f"planes/{number}", each).run())
                for number, each in enumerate(sizes)
            ]
            # A record of each partition, and what a change has beside the values that its size counts here.
            bound = most + 3_000 * (1 + len(sizes)) + a_change(name="").size() * (1 + sum(map(len, sizes)))
            async with asyncio.timeout(600):
                while not all(other.done() for other in others):
                    assert budget.used + publisher.outstanding_bytes <= bound
                    await asyncio.sleep(0.001)
            await asyncio.gather(*others)
            assert not stuck.done()
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)
        assert budget.used == 0

    run_in_virtual_time(scenario())
