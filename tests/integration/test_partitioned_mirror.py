"""A mirror that is partitioned by a date: what BigQuery takes no streamed rows for is a dead letter, the rest goes on.

BigQuery, "Introduction to the Storage Write API", section "Time-unit column partitioning": five years back, one ahead.
"""

import json
from datetime import UTC, date, datetime, timedelta

import grpc
import pytest

from shared.contracts.reasons import Reason
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.integration.stand_in import StandIn
from tests.worlds.leasing_consumer import LeasingConsumer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_rows_outside_the_partitions_are_dead_letters_and_the_others_of_the_request_are_applied(
    channel: grpc.Channel, bigquery_stand_in: tuple[str, str]
) -> None:
    stand_in = StandIn(bigquery_stand_in)
    stand_in.run(
        "CREATE TABLE planes (id INT64, name STRING, seats INT64, built DATE, PRIMARY KEY (id) NOT ENFORCED) "
        "PARTITION BY built"
    )
    today = datetime.now(UTC).date()
    inside = [today, today - timedelta(days=4 * 365), today + timedelta(days=11 * 30)]
    outside = [date(2013, 1, 1), today + timedelta(days=13 * 31)]
    built = [inside[0], outside[0], inside[1], outside[1], inside[2]]
    consumer = LeasingConsumer(channel, bigquery_stand_in, stand_in)
    try:
        rows = [a_change(number, 1, built=day.isoformat()) for number, day in enumerate(built)]
        header = a_header(columns=(*PLANE_COLUMNS, ("built", "DATE")))
        consumer.publish(a_message(*rows, header=header))
        consumer.apply_until(lambda: consumer.total.acked == 1, "the message to be applied")

        found = stand_in.run("SELECT id, built FROM planes ORDER BY id")
        assert found == [(number, day) for number, day in enumerate(built) if day in inside]
        dead_letters = consumer.dead_letters()
        assert sorted((dead_letter.reason, dead_letter.key) for dead_letter in dead_letters) == [
            (Reason.REFUSED_BY_BIGQUERY, json.dumps([number])) for number, day in enumerate(built) if day in outside
        ]
        assert {"outside the allowed bounds" in dead_letter.detail for dead_letter in dead_letters} == {True}
        assert consumer.total.deferred == 0
    finally:
        consumer.close()
