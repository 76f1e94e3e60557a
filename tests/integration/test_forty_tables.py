"""Forty tables, several in trouble of every kind, through the real adapters on the real stand-in: the others flow on.

One task's messages are leased from the Pub/Sub emulator and applied in this process; no Spark.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import grpc
import pytest

from shared.contracts.timestamps import format_timestamp
from shared.runtime.clock import SystemClock
from tests.builders import PLANE_COLUMNS, a_header, a_message
from tests.builders import a_change as an_old_change
from tests.integration.stand_in import StandIn
from tests.worlds.leasing_consumer import LeasingConsumer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TABLES = tuple(f"table{number}" for number in range(40))
QUOTA = 8_000
"""Bytes a second: as many as a few of the forty tables' first requests have together."""
FEW = 3
"""Micro-batches that may pass before what is there is applied: a pull need not return all that there is."""
a_change = partial(an_old_change, committed=format_timestamp(SystemClock().now()))
"""Committed just now: a row of yesterday's would not be sent once more to see whose trouble it is."""


@pytest.fixture
def consumer(channel: grpc.Channel, bigquery_stand_in: tuple[str, str]) -> Iterator[LeasingConsumer]:
    stand_in = StandIn(bigquery_stand_in)
    consumer = LeasingConsumer(channel, bigquery_stand_in, stand_in)
    yield consumer
    consumer.close()
    for what in ("faults", "delay"):
        stand_in.control("DELETE", what)


def changes(sequence: int, tables: Collection[str] = TABLES) -> list[Mapping[str, Any]]:
    return [a_message(a_change(1, sequence), a_change(2, sequence), header=a_header(table)) for table in tables]


def rows(sequence: int) -> Mapping[int, str]:
    return {1: f"name {sequence}", 2: f"name {sequence}"}


def check(consumer: LeasingConsumer, tables: Collection[str], expected: Mapping[int, str] | None) -> None:
    assert {table: consumer.names(table) for table in tables} == dict.fromkeys(tables, expected)


def test_of_forty_tables_those_in_trouble_wait_and_all_others_flow_and_then_all_are_equal(
    consumer: LeasingConsumer,
) -> None:
    there, new = TABLES[:37], TABLES[37:]
    consumer.publish(*changes(1, there))
    consumer.apply_until(lambda: consumer.total.acked >= len(there), "the first tables to be there")
    check(consumer, there, rows(1))

    forbidden, lost, quota, internal, refused, stalled, wider, choking, stuck, unanswered = there[:10]
    not_ours, unknown, plain = new
    consumer.fault(forbidden, status="PERMISSION_DENIED")
    consumer.fault(lost, status="NOT_FOUND", storage_error="TABLE_NOT_FOUND", action="close")
    consumer.fault(quota, status="RESOURCE_EXHAUSTED", action="close")
    consumer.fault(internal, status="INTERNAL")
    consumer.fault(refused, status="INVALID_ARGUMENT")  # every request, with no word about rows
    consumer.fault(stalled, action="stall", when="after")  # accepted, and not a word
    consumer.fault(choking, status="INVALID_ARGUMENT", containing="choke")  # one row, with no word about it
    consumer.fault(stuck, status="INTERNAL", containing="stuck")
    consumer.fault(unanswered, action="close", when="after", times=3)  # accepted, and the connection gone
    consumer.fault(not_ours, on="rest", status="PERMISSION_DENIED")
    consumer.stand_in.control("POST", "delay", table=consumer.path(wider), alterations=3_600)
    consumer.stand_in.control("POST", "delay", table=consumer.path(unknown), new_tables=3_600)
    waiting = {forbidden, lost, quota, internal, refused, stalled, not_ours, unknown}
    flowing = set(TABLES) - waiting
    colour = a_header(wider, (*PLANE_COLUMNS, ("colour", "STRING")))
    consumer.publish(
        *changes(2),
        a_message(a_change(3, 2, colour="red"), header=colour),
        a_message(a_change(3, 2, name="choke"), a_change(4, 2), header=a_header(choking)),
        a_message(a_change(3, 2, name="stuck"), a_change(4, 2), header=a_header(stuck)),
        a_message(a_change(3, 2, seats="many"), header=a_header(plain)),
        a_message(a_change(1, 2), header=a_header("keyless", key=())),
        a_message(data=b"garbage"),
    )
    poison = {"value_does_not_fit": 1, "no_primary_key": 1, "undecodable": 1, "refused_by_bigquery": 1}
    settled = len(there) + len(flowing) + 4  # `colour` and `stuck` wait with the tables in trouble
    consumer.apply_until(lambda: consumer.total.acked >= settled, "all that can be applied")

    assert consumer.total.dead_letters == poison
    assert set(consumer.total.tables_in_trouble) == waiting | {wider}
    assert consumer.total.tables["keyless"].unfit.startswith("no_primary_key")
    extra = {choking: {4: "name 2"}, stuck: {4: "name 2"}}
    assert {table: consumer.names(table) for table in flowing} == {
        table: {**rows(2), **extra.get(table, {})} for table in flowing
    }
    known = waiting - {stalled, not_ours, unknown}
    check(consumer, known, rows(1))
    assert consumer.names(not_ours) is None

    for sequence in (3, 4):  # while the trouble lasts
        consumer.publish(*changes(sequence, sorted(flowing)))
        settled += len(flowing)
        rounds = consumer.apply_until(lambda settled=settled: consumer.total.acked >= settled, "those that flow")  # type: ignore[misc]
        assert rounds <= FEW, "whatever the others wait for, these are in the next micro-batch"
        check(consumer, flowing - set(extra), rows(sequence))
    assert sorted(dead_letter.reason.value for dead_letter in consumer.dead_letters()) == sorted(poison)

    for what in ("faults", "delay"):
        consumer.stand_in.control("DELETE", what)
    settled += len(waiting) + 2
    consumer.apply_until(lambda: consumer.total.acked >= settled, "what was deferred")
    check(consumer, waiting, rows(2))
    assert consumer.names(wider) == {**rows(4), 3: "name 2"}
    mended = consumer.apply()
    assert (mended.tables_in_trouble, consumer.memory.tables._troubles) == ((), {})


def test_a_quota_that_is_exhausted_again_and_again_delays_and_loses_nothing(consumer: LeasingConsumer) -> None:
    def refused() -> int:
        return int(consumer.stand_in.control("GET", "stats")["refused"])

    consumer.publish(*changes(1))
    consumer.apply_until(lambda: consumer.total.acked >= len(TABLES), "all tables to be there")
    before = refused()
    consumer.stand_in.control("POST", "limits", bytes_per_second=QUOTA)
    try:
        for sequence in (2, 3):
            consumer.publish(*changes(sequence))
            consumer.apply_until(lambda: consumer.total.acked >= sequence * len(TABLES), "all tables")  # noqa: B023
    finally:
        consumer.stand_in.control("POST", "limits", bytes_per_second=None)

    assert refused() - before >= len(TABLES), "the quota was met again and again"
    check(consumer, TABLES, rows(3))
    assert (consumer.total.released, consumer.total.dead_letters, consumer.dead_letters()) == (0, {}, [])
