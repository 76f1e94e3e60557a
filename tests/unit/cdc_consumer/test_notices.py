"""What a task says of messages that it cannot be sure of any more."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from shared.contracts.safe_age import SAFE_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_change, a_message
from tests.unit.cdc_consumer.world import AIRPORTS, NOW, World

LONG_AGO = SAFE_AGE + timedelta(seconds=1)


def a_message_from(age: timedelta, delivery: int, **more: object) -> Mapping[str, object]:
    published = datetime.fromtimestamp(NOW / 1e9, UTC) - age
    committed = format_timestamp(Nanoseconds(int(published.timestamp()) * 1_000_000_000))
    message = a_message(a_change(1, committed=committed), delivery_attempt=delivery, **more)  # type: ignore[arg-type]
    return {**message, "publish_time": published}


def said(world: World, *messages: Mapping[str, object]) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        assert world.apply(*messages).dead_letters == {}
    return [(one["log_level"], one["table"]) for one in logs if one["event"] == "changes_came_again_late"]


def test_changes_that_come_again_after_days_are_applied_and_told_once_for_each_table_and_process() -> None:
    world = World()
    assert said(world, a_message_from(LONG_AGO, 2), a_message_from(timedelta(0), 2, header=AIRPORTS)) == [
        ("warning", "planes")
    ]
    assert world.names() == {1: "name 1"}
    again = a_message_from(LONG_AGO, 5), a_message_from(LONG_AGO, 2, header=AIRPORTS)
    assert said(world, *again) == [("warning", "airports")]
    assert said(world, *again) == []
    world.start_anew()
    assert len(said(world, *again)) == 2


@pytest.mark.parametrize(("age", "delivery"), [(LONG_AGO, 1), (SAFE_AGE, 2)])
def test_what_comes_for_the_first_time_or_before_deletes_are_forgotten_is_nothing_to_tell(
    age: timedelta, delivery: int
) -> None:
    assert said(World(), a_message_from(age, delivery)) == []


def test_a_history_is_none_the_worse_for_it() -> None:
    assert said(World(tables_file='[defaults]\nmode = "history"'), a_message_from(LONG_AGO, 2)) == []
