"""The world of a micro-batch, which most modules share; the others have one of their own."""

import pytest

from tests.unit.cdc_consumer.world import World


@pytest.fixture
def world() -> World:
    return World()
