"""A connection of each test to the emulators of the session, and a stand-in for those that may not share it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase
from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from shared.pubsub.channels import open_channel
from shared.pubsub.topology import PubsubTopology
from tests.integration.bigtable_front import Front
from tests.integration.pubsub_topics import a_topology
from tests.integration.stand_in import StandIn
from tests.worlds.bigtable_pipeline import BigtablePipeline
from tests.worlds.consumer import World, a_world
from tests.worlds.dead_letter_commands import Place
from tests.worlds.history_consumer import BOTH, Fed, FedConsumer
from tests.worlds.spanner_pipeline import SpannerPipeline
from tests.worlds.type_map import Target, open_target
from tests.worlds.watched_schema import Watched, maker_of


@pytest.fixture
def channel(pubsub_emulator: str) -> Iterator[grpc.Channel]:
    """Return a channel to the Pub/Sub emulator."""
    with open_channel(pubsub_emulator) as channel:
        yield channel


@pytest.fixture
def topology(channel: grpc.Channel) -> PubsubTopology:
    """Return topics and subscriptions of a test's own."""
    return a_topology(channel)


@pytest.fixture
def stand_in(bigquery_stand_in: tuple[str, str]) -> StandIn:
    """Return the stand-in that all share, with a dataset of a test's own."""
    return StandIn(bigquery_stand_in)


@pytest.fixture(scope="module")
def front(bigtable_front: str) -> Iterator[Front]:
    """Return a client of the Bigtable emulator with change streams."""
    with Front(bigtable_front) as front:
        yield front


@pytest.fixture(scope="module")
def stand_in_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Return the addresses of a stand-in for a module alone: its clock, limits and faults are for all who use it."""
    with (
        Processes(tmp_path_factory.mktemp("processes"), os.environ) as processes,
        emulators.bigquery_stand_in(processes) as found,
    ):
        yield found


@pytest.fixture
def world(pubsub_emulator: str, bigquery_stand_in: tuple[str, str], new_processes: Processes) -> Iterator[World]:
    """Return a pipeline without a reader; its consumer is still to be started."""
    with a_world(pubsub_emulator, bigquery_stand_in, new_processes) as world:
        yield world


@pytest.fixture
def spanner_pipeline(
    pubsub_emulator: str, channel: grpc.Channel, topology: PubsubTopology, new_processes: Processes
) -> Callable[[SpannerDatabase, SpannerDatabase], SpannerPipeline]:
    """Return a function that gives a watched database a topic, readers, and a database for their partition table."""
    return lambda watched, partitions: SpannerPipeline(
        watched, partitions, pubsub_emulator, channel, topology, new_processes
    )


@pytest.fixture
def bigtable_pipeline(
    pubsub_emulator: str, channel: grpc.Channel, topology: PubsubTopology, new_processes: Processes
) -> Callable[..., Any]:
    """Return a function that gives a watched table a topic, and readers; what they are between is of a kind."""
    return lambda table, kind=BigtablePipeline: kind(table, pubsub_emulator, channel, topology, new_processes)


@pytest.fixture
def place(tmp_path: Path, pubsub_emulator: str, channel: grpc.Channel, topology: PubsubTopology) -> Place:
    """Return a store of dead letters, and topics for what is replayed."""
    return Place(tmp_path / "letters.sqlite3", pubsub_emulator, channel, topology)


@pytest.fixture(params=["GoogleSQL", "PostgreSQL"])
def watching(request: pytest.FixtureRequest, database: Callable[..., SpannerDatabase]) -> Callable[..., Watched]:
    """Return a function that makes a database with table ``t`` and a stream, in a dialect."""
    return maker_of(request.param, database)


@pytest.fixture
def target(bigquery_stand_in: tuple[str, str]) -> Iterator[Target]:
    """Return a dataset of a test's own, and the part of the consumer that writes it."""
    with open_target(bigquery_stand_in) as target:
        yield target


@pytest.fixture(scope="module")
def storage(bigquery_stand_in: tuple[str, str]) -> Iterator[grpc.Channel]:
    """Return a channel to the write API of the stand-in that all share."""
    with open_storage_channel(bigquery_stand_in[1]) as channel:
        yield channel


@pytest.fixture
def fed(stand_in: StandIn, bigquery_stand_in: tuple[str, str], storage: grpc.Channel) -> Fed:
    """Return a function that makes a consumer of the stand-in's dataset, with what a tables file says."""
    return lambda tables=BOTH: FedConsumer(stand_in, bigquery_stand_in[0], storage, tables)
