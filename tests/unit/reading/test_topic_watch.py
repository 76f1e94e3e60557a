"""The topic of any reader is checked again and again; once it loses messages, no confirmation counts any more."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from shared.contracts.errors import MessagesLostError, MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.reading.topic_watch import TopicWatch
from tests.fakes.subscriptions import FakeSubscriptions


class World:
    """A topic that is watched, and what the watch does when it loses messages."""

    def __init__(self) -> None:
        self.subscriptions = FakeSubscriptions()
        self.reached = Nanoseconds(1_000_000_000)
        self.done: list[str] = []
        self.watch = TopicWatch(
            self.subscriptions.check,
            timedelta(minutes=1),
            lambda: self.reached,
            new_start="PARTITION_TABLE",
            lost=self._lost,
        )

    async def _lost(self) -> None:
        assert not self.watch.is_durable
        self.done.append("recorded")


@pytest.mark.parametrize(("kind", "done"), [(MessagesLostError, ["recorded"]), (MisconfiguredError, [])])
async def test_a_topic_that_loses_messages_ends_the_reader_and_what_is_lost_already_is_recorded_before(
    kind: type[MisconfiguredError], done: list[str]
) -> None:
    world = World()
    watching = asyncio.create_task(world.watch.keep_checking())
    await asyncio.sleep(90)
    world.reached = Nanoseconds(2_000_000_000)
    world.subscriptions.error = kind("made-up", "topic t would lose messages")
    with pytest.raises(MisconfiguredError, match=r"would lose[\s\S]*another PARTITION_TABLE") as raised:
        await watching
    assert not world.watch.is_durable
    assert world.done == done
    assert "committed up to 1970-01-01T00:00:01Z were published" in str(raised.value), "what the last good check saw"
    assert ("what `status` says of resyncs" in str(raised.value)) is ("recorded" in done)


async def test_a_check_that_cannot_be_made_just_now_is_made_again() -> None:
    world = World()
    world.subscriptions.error = TransientError("UNAVAILABLE")
    watching = asyncio.create_task(world.watch.keep_checking())
    with capture_logs() as logs:
        await asyncio.sleep(150)
    assert (world.watch.is_durable, world.done, watching.done()) == (True, [], False)
    assert [line["event"] for line in logs] == ["subscriptions_not_checked"] * 2
    watching.cancel()
