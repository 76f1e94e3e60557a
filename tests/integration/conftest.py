"""A connection of each test to the emulators of the session, and a stand-in for those that may not share it."""

import os
from collections.abc import Iterator

import grpc
import pytest

from deploy.local import emulators
from deploy.local.processes import Processes
from shared.pubsub.channels import open_channel
from tests.integration.bigtable_front import Front


@pytest.fixture
def pubsub_channel(pubsub_emulator: str) -> Iterator[grpc.Channel]:
    """Return a channel to the Pub/Sub emulator."""
    with open_channel(pubsub_emulator) as channel:
        yield channel


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
