"""A connection of each test to the emulators of the session, and a stand-in for those that may not share it."""

import os
from collections.abc import Iterator

import grpc
import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from shared.pubsub.channels import open_channel
from shared.pubsub.topology import PubsubTopology
from tests.integration.bigtable_front import Front
from tests.integration.pubsub_topics import a_topology
from tests.integration.stand_in import StandIn
from tests.worlds.consumer import World, a_world


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
