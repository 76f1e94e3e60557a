"""The publisher against the emulator: confirmed is there, in each key's order, with a pause of Pub/Sub in between."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence

import grpc
import msgspec
import pytest
import structlog

from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import from_message
from shared.contracts.reasons import Reason
from shared.pubsub.channels import open_async_channel
from shared.pubsub.dead_letters import AsyncDeadLetterPublisher
from shared.pubsub.packer import PackerLimits
from shared.pubsub.publisher import BatchPublisher, PublisherHooks, PublisherOptions
from shared.pubsub.topology import PubsubTopology
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.integration.pubsub_topics import a_topology, pull

pytestmark = pytest.mark.integration

CHANGES = 3_000


async def publish_all(emulator: str, topology: PubsubTopology, limits: PackerLimits) -> int:
    """Publish the test's changes and one that is too large; return how many messages carried them."""
    stop, confirmed = Stop(), list[int]()
    async with open_async_channel(emulator) as channel:
        dead_letters = AsyncDeadLetterPublisher(channel, topology.dead_letter_topic, stop)
        options = PublisherOptions(failed_in="a test", limits=limits, outstanding_bytes=200_000)
        async with BatchPublisher(
            channel, topology.topic, dead_letters, stop, options, PublisherHooks(confirmed=confirmed.append)
        ) as publisher:
            futures = [
                await publisher.publish(
                    a_header(), [(f"planes/{number % 7}", a_change(number)) for number in range(start, start + 50)]
                )
                for start in range(0, CHANGES, 50)
            ]
            large = a_change(1_000_000, name="x" * 9_200_000)
            futures.append(await publisher.publish(a_header(), [("planes/0", large)]))
            futures.append(await publisher.publish(a_header("empty"), []))
            await asyncio.gather(*futures)
            assert publisher.outstanding_bytes == 0
            return sum(confirmed)


@pytest.mark.parametrize("changes_per_message", [1, 500])
def test_what_is_confirmed_is_there_once_and_in_the_order_of_its_key(
    channel: grpc.Channel, pubsub_emulator: str, changes_per_message: int
) -> None:
    topology = a_topology(channel)
    limits = PackerLimits(changes_per_message=changes_per_message)
    messages = asyncio.run(publish_all(pubsub_emulator, topology, limits))

    received = pull(channel, topology.subscription)
    received.sort(key=lambda one: int(one.message.message_id))  # the emulator numbers them as it takes them
    numbers: dict[str, list[int]] = defaultdict(list)
    for one in received:
        batch = decode_batch(one.message.data)
        assert len(batch) == int(one.message.attributes["change_count"]) <= changes_per_message
        numbers[one.message.ordering_key] += [int(msgspec.json.decode(key)["id"]) for key in batch.keys]
    assert len(received) == messages
    assert {key: found for key, found in numbers.items() if found} == {
        f"planes/{key}": list(range(key, CHANGES, 7)) for key in range(7)
    }
    (dead,) = pull(channel, topology.dead_letter_subscription)
    dead_letter = from_message(dead.message.data, dict(dead.message.attributes))
    assert (dead_letter.reason, dead_letter.data, dead_letter.key) == (
        Reason.TOO_LARGE,
        b'{"id": "1000000"}',
        "[1000000]",
    )


class Wire:
    """A way to the emulator that breaks in mid-call after so many bytes, and is away for a while."""

    def __init__(self, emulator: str, breaks_after: Sequence[int]) -> None:
        self.host, _, self.port = emulator.partition(":")
        self.breaks_after = list(breaks_after)
        self._unavailable_until = 0.0
        self._sent = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._unavailable_until:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(self.host, int(self.port))
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._forward(reader, there_writer, counted=True), self._forward(there_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool = False) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(65_536):
                self._sent += len(data) if counted else 0
                if self.breaks_after and self._sent > self.breaks_after[0]:
                    self._break()  # with these bytes in hand: the call that they belong to fails
                    return
                writer.write(data)
                await writer.drain()
        writer.close()

    def _break(self) -> None:
        self.breaks_after.pop(0)
        self._unavailable_until = time.monotonic() + 0.3
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def publish_over_a_breaking_wire(emulator: str, topology: PubsubTopology) -> int:
    """Publish with two interruptions in mid-call; return how many messages were confirmed."""
    wire = Wire(emulator, breaks_after=(200_000, 600_000))
    async with await wire.open() as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        messages = await publish_all(address, topology, PackerLimits(changes_per_message=5))
    assert wire.breaks_after == []
    return messages


def test_over_a_broken_wire_nothing_is_lost_and_nothing_overtakes(channel: grpc.Channel, pubsub_emulator: str) -> None:
    topology = a_topology(channel)
    with structlog.testing.capture_logs() as logs:
        messages = asyncio.run(publish_over_a_breaking_wire(pubsub_emulator, topology))
    assert [event["event"] for event in logs].count("call_retried") >= 2

    received = pull(channel, topology.subscription)
    received.sort(key=lambda one: int(one.message.message_id))
    numbers: dict[str, list[int]] = defaultdict(list)
    for one in received:
        keys = decode_batch(one.message.data).keys
        numbers[one.message.ordering_key] += [int(msgspec.json.decode(key)["id"]) for key in keys]
    assert len(received) >= messages  # what was taken and not confirmed is sent again: twice, never not at all
    for bucket in range(7):
        first_arrivals = list(dict.fromkeys(numbers[f"planes/{bucket}"]))
        assert first_arrivals == list(range(bucket, CHANGES, 7))
