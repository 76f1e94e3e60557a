"""A connection of each test to the emulators of the session."""

from collections.abc import Iterator

import grpc
import pytest

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
