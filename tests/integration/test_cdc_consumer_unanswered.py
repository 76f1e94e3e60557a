"""The consumer's start before servers that do not answer: it stops when it is told to, and is alive until they do."""

import asyncio
import json
from datetime import timedelta

import pytest

from services.cdc_consumer.settings import Settings, SetupSettings
from services.cdc_consumer.wiring.commands import set_up
from services.cdc_consumer.wiring.service import check_start
from shared.contracts.errors import TransientError
from shared.pubsub.channels import open_channel
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.integration.pubsub_topics import a_topology
from tests.integration.silent_server import stopped_before_a_silent_server
from tests.integration.stand_in import PROJECT
from tests.unit.cdc_consumer.world import NEEDED

pytestmark = pytest.mark.integration


def test_what_pubsub_does_not_answer_at_the_start_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        settings = read_settings(Settings, {**NEEDED, "PUBSUB_EMULATOR_HOST": address})
        await asyncio.to_thread(check_start, settings, [], Health(), stop)

    stopped_before_a_silent_server(scenario)


def test_what_pubsub_does_not_answer_at_the_set_up_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        settings = read_settings(SetupSettings, {**NEEDED, "TOPIC": "changes", "PUBSUB_EMULATOR_HOST": address})
        await asyncio.to_thread(set_up, settings, stop)

    stopped_before_a_silent_server(scenario)


def test_a_stop_does_not_wait_for_a_bigquery_that_does_not_answer_longer_than_a_stop_may_take(
    pubsub_emulator: str,
) -> None:
    async def scenario() -> None:
        asked = asyncio.Event()
        stop = Stop()

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with open_channel(pubsub_emulator) as channel:
            topology = a_topology(channel)
            settings = _settings(topology, pubsub_emulator, address)
            task = asyncio.create_task(asyncio.to_thread(check_start, settings, ["mirror"], Health(), stop))
            await asked.wait()
            stop.request()
            with pytest.raises(TransientError):
                await asyncio.wait_for(asyncio.shield(task), 10)
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_start_that_waits_for_bigquery_stays_alive(pubsub_emulator: str) -> None:
    seconds, alive = [0.0], list[bool]()
    health = Health(timedelta(seconds=60), now=lambda: seconds[0])

    async def silent_for_an_hour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        alive.append(health.alive)
        seconds[0] += 1_200
        answer = b"503 Service Unavailable" if len(alive) <= 3 else b"200 OK"
        body = json.dumps({"datasetReference": {"projectId": PROJECT, "datasetId": "mirror"}}).encode()
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        writer.write(head % (answer, len(body)) + body)
        await writer.drain()
        writer.close()

    async def scenario() -> timedelta:
        server = await asyncio.start_server(silent_for_an_hour, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with open_channel(pubsub_emulator) as channel:
            settings = _settings(a_topology(channel), pubsub_emulator, address)
        try:
            return await asyncio.to_thread(check_start, settings, ["mirror"], health, Stop())
        finally:
            server.close()

    assert asyncio.run(asyncio.wait_for(scenario(), 120)) > timedelta(0)
    assert alive == [True] * 4


def _settings(topology: PubsubTopology, pubsub: str, bigquery: str) -> Settings:
    given = {
        **NEEDED,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "SUBSCRIPTION": short_name(topology.subscription),
        "DEAD_LETTER_TOPIC": short_name(topology.dead_letter_topic),
        "PUBSUB_EMULATOR_HOST": pubsub,
        "BIGQUERY_EMULATOR_HOST": bigquery,
        "BIGQUERY_STORAGE_EMULATOR_HOST": bigquery,
    }
    return read_settings(Settings, given)
