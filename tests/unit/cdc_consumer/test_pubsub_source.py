"""The source's options: read once, every mistake named."""

from datetime import timedelta

import pytest

from services.cdc_consumer.adapters.pubsub_source import SourceOptions, read_options
from shared.contracts.errors import MisconfiguredError

NAME = "projects/p/subscriptions/s"


def test_the_subscription_is_all_that_is_needed() -> None:
    assert read_options({"subscription": NAME}) == SourceOptions(subscription=NAME)


def test_options_are_read_whatever_their_case() -> None:
    options = read_options(
        {
            "project": "p",
            "SUBSCRIPTION": "s",
            "emulatorHost": "127.0.0.1:1",
            "tasks": "4",
            "batchmessages": "100",
            "batchBytes": "1000",
            "linger": "10ms",
            "longestLinger": "1s",
            "idleWait": "3s",
            "ackDeadline": "10s",
            "stopFile": "/tmp/stop",
        }
    )

    assert options == SourceOptions(
        subscription=NAME,
        emulator_host="127.0.0.1:1",
        tasks=4,
        batch_messages=100,
        batch_bytes=1_000,
        linger=timedelta(milliseconds=10),
        longest_linger=timedelta(seconds=1),
        idle_wait=timedelta(seconds=3),
        ack_deadline=timedelta(seconds=10),
        stop_file="/tmp/stop",
    )
    assert options.limits(4).messages == 25


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "subscription"),
        ({"subscription": "s"}, "project"),
        ({"subscription": NAME, "tasks": "two"}, "tasks='two'"),
        ({"subscription": NAME, "tasks": "0"}, "tasks"),
        ({"subscription": NAME, "linger": "50"}, "linger='50'"),
        ({"subscription": NAME, "idleWait": "5m"}, "idleWait"),
    ],
)
def test_a_mistake_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(MisconfiguredError, match=named):
        read_options(options)
