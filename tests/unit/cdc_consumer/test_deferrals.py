"""Until when a drain that finds nothing has not drained the subscription, from one run to the next."""

from datetime import timedelta

import pytest

from services.cdc_consumer.app.stream.deferrals import Deferrals
from services.cdc_consumer.core.stream.counts import Counts
from shared.contracts.timestamps import format_timestamp
from tests.builders import a_change, a_message
from tests.fakes.durable_bytes import FakeDurableBytes
from tests.unit.cdc_consumer.world import AIRPORTS, NOW, SetClock, World


def test_the_next_run_knows_by_when_what_was_deferred_comes_again() -> None:
    world, kept = World(), FakeDurableBytes()
    world.tables.forbidden = {"planes"}
    first = Deferrals(kept, world.clock)
    first.take(world.apply(a_message(a_change(1), delivery_attempt=3), a_message(a_change(2))))
    first.take(world.apply(a_message(header=AIRPORTS)))
    deferred = world.leases.deferred_for
    assert deferred == {"a0": timedelta(minutes=2), "a1": timedelta(seconds=30)}

    world.clock.pass_time(timedelta(minutes=2))
    until = Deferrals(kept, world.clock).until()
    assert until is not None, "Pub/Sub need not deliver on the second"
    assert format_timestamp(until) == "2026-11-21T12:02:15Z"
    world.clock.pass_time(timedelta(seconds=10))
    assert Deferrals(kept, world.clock).until() is None
    assert first.until() is None


def test_where_nothing_is_deferred_nothing_is_kept_and_an_earlier_time_changes_nothing() -> None:
    kept, clock = FakeDurableBytes(), SetClock()
    deferrals = Deferrals(kept, clock)
    deferrals.take(Counts(messages=1, acked=1))
    assert (kept.data, deferrals.until()) == (None, None)

    for minutes in (5, 1):
        deferrals.take(Counts(deferred=1, deferred_until=NOW // 1000 + minutes * 60_000_000))
    clock.pass_time(timedelta(minutes=4))
    assert Deferrals(kept, clock).until() is not None


@pytest.mark.parametrize("data", [b"", b"\xff", b"soon", b"-1"])
def test_what_is_not_understood_of_what_was_kept_is_passed_over(data: bytes) -> None:
    kept = FakeDurableBytes()
    kept.write(data)
    assert Deferrals(kept, SetClock()).until() is None


def test_a_time_that_another_process_has_kept_counts_and_is_not_replaced_by_an_earlier_one() -> None:
    kept, clock = FakeDurableBytes(), SetClock()
    driver, worker = Deferrals(kept, clock), Deferrals(kept, clock)
    worker.take(Counts(deferred=1, deferred_until=NOW // 1000 + 60_000_000))
    assert driver.until() is not None

    driver.take(Counts(deferred=1, deferred_until=NOW // 1000 + 1_000_000))
    clock.pass_time(timedelta(seconds=60))
    assert Deferrals(kept, clock).until() is not None
