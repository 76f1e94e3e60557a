"""What every Publisher promises: the fake, and the batch publisher (on the Pub/Sub emulator)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import pytest

from shared.contracts.change_batch import Change, Header, decode_batch
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.channels import open_async_channel, open_channel
from shared.pubsub.dead_letters import AsyncDeadLetterPublisher
from shared.pubsub.publisher import OUTSTANDING_BYTES, BatchPublisher, PublisherOptions
from shared.reading.publishing import ChangePublisher
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_change, a_header
from tests.fakes.spanner_reader import FakePublisher, Topic
from tests.integration.pubsub_topics import a_topology, pull

PLANES: Final = a_header()
WIDER: Final = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
TIMEOUT: Final = 30.0

Published = Sequence[tuple[Header, Sequence[Change]]]


@dataclass
class Place:
    """A publisher, and what its topic has got by now: headers, each with its changes."""

    publisher: ChangePublisher
    published: Callable[[], Published]

    async def publish(self, *changes: Change, header: Header = PLANES) -> asyncio.Future[None]:
        """Hand changes over, each under a key of its own; fails where the publisher does not take them in time."""
        keyed = [(f"{header.table}/{change.key}", change) for change in changes]
        return await asyncio.wait_for(self.publisher.publish(header, keyed), TIMEOUT)

    def changes(self) -> Counter[tuple[Header, Change]]:
        """Return how many times each change is there, under its header."""
        return Counter((header, change) for header, changes in self.published() for change in changes)


class PublisherContract:
    """The promises. A subclass opens the publisher: ``narrow`` has room for one publication, ``broken`` no topic."""

    def open(self, *, narrow: bool = False, broken: bool = False) -> AbstractAsyncContextManager[Place]:
        raise NotImplementedError

    @pytest.fixture
    def place(self) -> AbstractAsyncContextManager[Place]:
        return self.open()

    @pytest.fixture
    def narrow(self) -> AbstractAsyncContextManager[Place]:
        return self.open(narrow=True)

    async def test_what_is_confirmed_is_there_as_it_was(self, place: Place) -> None:
        given = [a_change(1), a_change(2, 5, op="DELETE"), a_change(3, name="Zo\xeb \N{SNOWMAN} \"'\\", seats=None)]
        await (await place.publish(*given))
        assert place.changes() == Counter((PLANES, change) for change in given)

    async def test_a_confirmation_is_about_its_own_changes_and_all_of_them(self, place: Place) -> None:
        batches = [[a_change(100 * n + m) for m in range(n)] for n in range(1, 30)]
        futures = [(await place.publish(*changes), changes) for changes in batches]
        for future, changes in futures:
            await asyncio.wait_for(future, TIMEOUT)
            assert not Counter((PLANES, change) for change in changes) - place.changes()
        assert sum(place.changes().values()) == sum(map(len, batches))

    async def test_no_changes_announce_the_table_and_its_columns(self, place: Place) -> None:
        for header in (PLANES, WIDER, a_header("empty")):
            await (await place.publish(header=header))
        assert {header for header, changes in place.published() if not changes} >= {PLANES, WIDER, a_header("empty")}
        assert place.changes() == Counter()

    async def test_changes_of_several_tables_and_column_lists_keep_their_headers(self, place: Place) -> None:
        headers = [PLANES, WIDER, a_header("pilots"), PLANES]
        given = [(header, a_change(number)) for number, header in enumerate(headers)]
        await asyncio.gather(*[await place.publish(change, header=header) for header, change in given])
        assert place.changes() == Counter(given)

    async def test_the_same_change_twice_is_published_twice(self, place: Place) -> None:
        await asyncio.gather(await place.publish(a_change(1)), await place.publish(a_change(1)))
        assert place.changes() == Counter({(PLANES, a_change(1)): 2})

    async def test_changes_are_taken_only_when_there_is_room(self, narrow: Place) -> None:
        futures: list[asyncio.Future[None]] = []
        for number in range(20):
            futures.append(await narrow.publish(a_change(number)))
            assert sum(not future.done() for future in futures) <= 1
        await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT)
        assert len(narrow.changes()) == 20

    async def test_a_caller_that_waits_no_longer_harms_no_other(self, narrow: Place) -> None:
        (await narrow.publish(a_change(1))).cancel()
        await asyncio.wait_for(await narrow.publish(a_change(2)), TIMEOUT)
        assert (PLANES, a_change(2)) in narrow.changes()

    async def test_closing_publishes_what_was_taken(self, place: Place) -> None:
        futures = [await place.publish(a_change(number)) for number in range(50)]
        await asyncio.wait_for(place.publisher.close(), TIMEOUT)
        assert all(future.done() and future.exception() is None for future in futures)
        assert place.changes() == Counter((PLANES, a_change(number)) for number in range(50))

    async def test_nothing_is_taken_after_the_end(self, place: Place) -> None:
        await place.publisher.close()
        with pytest.raises(RuntimeError, match="closed"):
            await place.publish(a_change(1))
        assert place.published() == []

    async def test_where_nothing_can_be_published_until_someone_acts_the_caller_learns_it_every_time(self) -> None:
        async with self.open(broken=True) as place:
            for number in range(3):
                with pytest.raises(MisconfiguredError):
                    await asyncio.wait_for(await place.publish(a_change(number)), TIMEOUT)
            assert place.published() == []


class TestFakePublisher(PublisherContract):
    @asynccontextmanager
    async def open(self, *, narrow: bool = False, broken: bool = False) -> AsyncIterator[Place]:
        topic = Topic()
        publisher = FakePublisher(topic, room=1 if narrow else 100)
        publisher.error = MisconfiguredError("made-up", "no such topic") if broken else None
        yield Place(publisher, lambda: topic.batches)


@pytest.mark.integration
class TestBatchPublisher(PublisherContract):
    @pytest.fixture(autouse=True)
    def _emulator(self, pubsub_emulator: str) -> None:
        self.emulator = pubsub_emulator

    @asynccontextmanager
    async def open(self, *, narrow: bool = False, broken: bool = False) -> AsyncIterator[Place]:
        stop, batches = Stop(), list[tuple[Header, Sequence[Change]]]()
        with open_channel(self.emulator) as hands:
            topology = a_topology(hands)

            def published() -> Published:
                received = pull(hands, topology.subscription)
                batches.extend(as_published(one.message.data) for one in received)
                return batches

            async with open_async_channel(self.emulator) as channel:
                dead_letters = AsyncDeadLetterPublisher(channel, topology.dead_letter_topic, stop)
                topic = f"{topology.topic}-missing" if broken else topology.topic
                room = 1 if narrow else OUTSTANDING_BYTES
                options = PublisherOptions(failed_in="a test", outstanding_bytes=room)
                async with BatchPublisher(channel, topic, dead_letters, stop, options) as publisher:
                    yield Place(publisher, published)


def as_published(data: bytes) -> tuple[Header, Sequence[Change]]:
    """Return a message's header and changes as they were handed to the publisher."""
    batch = decode_batch(data)
    changes = [
        Change(
            op="DELETE" if batch.op[index] == "DELETE" else "UPSERT",
            mod_type=batch.mod_type[index],
            sequence=batch.sequence[index],
            commit_timestamp=batch.commit_timestamp[index],
            place=text(batch.place[index]) or "",
            key=text(batch.keys[index]) or "",
            row=text(batch.rows[index]),
            old=text(batch.old[index]),
        )
        for index in range(len(batch))
    ]
    return batch.header, changes


def text(raw: msgspec.Raw) -> str | None:
    """Return JSON text as it travelled; None for null."""
    return None if bytes(raw) == b"null" else bytes(raw).decode()
