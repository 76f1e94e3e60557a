"""A pipeline without a reader for the consumers that are tested here."""

from collections.abc import Iterator

import pytest

from deploy.local.platform.processes import Processes
from tests.worlds.consumer import World, a_world


@pytest.fixture
def world(pubsub_emulator: str, bigquery_stand_in: tuple[str, str], new_processes: Processes) -> Iterator[World]:
    """Return a pipeline without a reader; its consumer is still to be started."""
    with a_world(pubsub_emulator, bigquery_stand_in, new_processes) as world:
        yield world
