"""A consumer that is run now and then: it applies all there is, and ends.

The first run starts Spark, the only start of this module: Spark has to end the query by itself. It has one task there
and no shuffle.
"""

from datetime import timedelta

import pytest
from msgspec import structs

from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import pull, pull_until
from tests.worlds.consumer import ON_SPARK, WITHOUT_SPARK, World

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ONE_TASK = {"SPARK_MASTER": "local[1]", "TASKS": "1"}
TABLES = ("planes", "pilots", "airports")
TIMEOUT = timedelta(seconds=240)


def test_what_is_available_now_is_drained_and_it_ends_with_success(world: World) -> None:
    for table in TABLES:
        header = a_header(table)
        world.publish(*[a_message(a_change(n % 30, n + 1), header=header) for n in range(100)])
    world.publish(a_message(data=b"garbage"))
    for run, module in (("first", ON_SPARK), ("second", WITHOUT_SPARK)):  # the second has nothing to do
        consumer = world.launch(run, module=module, **ONE_TASK, TRIGGER="available-now", MICRO_BATCH_MESSAGES="60")
        consumer.process.expected_to_end = True

        assert consumer.process.wait(TIMEOUT) == 0, consumer.process.obituary()
        assert len(events(consumer.process, "subscription_drained")) == 1
        (counted,) = events(consumer.process, "leases_counted")
        assert (counted["taken"], counted["acked"], counted["left"]) == ((301, 301, 0) if run == "first" else (0, 0, 0))
        newest = {n % 30: f"name {n + 1}" for n in range(100)}
        assert {table: world.names(table) for table in TABLES} == dict.fromkeys(TABLES, newest)
        assert pull(world.channel, world.topology.subscription) == []

    assert [one.reason for one in world.dead_letters()] == [Reason.UNDECODABLE]


def test_what_waits_for_a_table_or_for_an_upgrade_is_left_to_the_next_run(world: World) -> None:
    world.fault(
        action="answer", status="PERMISSION_DENIED", table=f"{world.pipeline.project}.{world.pipeline.dataset}.planes"
    )
    newer = a_message(a_change(1), header=structs.replace(a_header("airports"), format=99))
    world.publish(a_message(a_change(1)), a_message(a_change(1), header=a_header("pilots")), newer)
    first = world.launch("first", TRIGGER="available-now")
    first.process.expected_to_end = True
    assert first.process.wait(TIMEOUT) == 3, first.process.obituary()
    (counted,) = events(first.process, "leases_counted")
    # Where the machine is so slow that leases end before the sink begins, all messages come once more.
    assert (2 * counted["acked"], counted["left"]) == (counted["deferred"], 0)
    assert counted["acked"] >= 1
    (left_to_it,) = events(first.process, "messages_left")
    assert left_to_it["deferred"] == counted["deferred"]
    assert set(left_to_it["tables"]) == {"planes", "airports"}
    assert events(first.process, "newer_format_waits")[0]["attributes"]["table"] == "airports"
    assert world.names("pilots") == {1: "name 1"}

    # Whoever runs it again at once is not told that everything is there.
    beside = str(world.processes.directory / "first-checkpoint")
    second = world.launch("second", TRIGGER="available-now", CHECKPOINT_LOCATION=beside)
    second.process.expected_to_end = True
    assert second.process.wait(TIMEOUT) == 3, second.process.obituary()
    (left_to_it,) = events(second.process, "messages_left")
    assert left_to_it["come_again"] is not None

    left = pull_until(world.channel, world.topology.subscription, 1, timedelta(seconds=200))
    assert len(left) == 1, "the one of a newer format comes after ten minutes"
    assert world.dead_letters() == []
