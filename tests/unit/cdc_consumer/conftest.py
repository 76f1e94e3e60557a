"""The world of the tests of trouble, which several modules share; the others have one of their own."""

from datetime import timedelta
from typing import Any

import pytest

from services.cdc_consumer.app.stream.trouble import RetryLimits
from tests.unit.cdc_consumer.world import AT_ONCE, World


@pytest.fixture
def world() -> World:
    """Return a world in which a second goes by at each look at the clock."""
    world = World()
    world.start_anew(RetryLimits(between_calls=AT_ONCE))
    world.clock.ticks = timedelta(seconds=1)
    return world


@pytest.fixture
def attempts(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tables that were looked at or appended to, one entry each time."""
    seen: list[str] = []
    append, ensure = world.writer.append, world.tables._brought_about

    def count_append(definition: Any, rows: Any) -> Any:
        seen.append(definition.name)
        return append(definition, rows)

    def count_ensure(definition: Any) -> Any:
        seen.append(definition.name)
        return ensure(definition)

    monkeypatch.setattr(world.writer, "append", count_append)
    monkeypatch.setattr(world.tables, "_brought_about", count_ensure)
    return seen
