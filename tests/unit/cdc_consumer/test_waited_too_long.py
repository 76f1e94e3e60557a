"""What was not too old when it came may be by the time that it could be written."""

from datetime import timedelta

import pytest
from msgspec import structs

from shared.contracts.dead_letter import REPLAY_OF
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_change, a_header, a_message
from tests.unit.cdc_consumer.world import NOW, PUBLISHED, World

HOUR = 3_600_000_000_000


@pytest.mark.parametrize("origin", ["replay", "snapshot"])
@pytest.mark.parametrize("away", ["dataset", "service"])
def test_an_upsert_that_waited_for_days_is_not_written_over_a_delete_that_bigquery_has_forgotten(
    origin: str, away: str
) -> None:
    committed = Nanoseconds(NOW - 20 * HOUR)
    change = a_change(1, committed // 1000, committed=format_timestamp(committed))
    header = a_header() if origin == "replay" else structs.replace(a_header(), origin="snapshot")
    message = {**a_message(change, header=header), "publish_time": PUBLISHED}
    if origin == "replay":
        message["attributes"] = [(REPLAY_OF, "x")]
    world = World()
    world.apply(a_message(a_change(9, 1)))  # the table is there
    back_at = world.clock.time + 60 * HOUR

    def meanwhile() -> None:
        world.clock.pass_time(timedelta(hours=1))
        if world.clock.time >= back_at:
            world.tables.dataset_refused, world.writer.unavailable = False, 0

    world.meanwhile = meanwhile
    world.tables.dataset_refused = away == "dataset"
    world.writer.unavailable = 10_000 if away == "service" else 0
    counts = world.apply(message, a_message(a_change(1, 5), header=a_header("airports")))
    assert 1 not in world.names()
    assert counts.deferred >= 1

    world.meanwhile = lambda: None
    world.tables.dataset_refused, world.writer.unavailable = False, 0
    world.clock.pass_time(timedelta(minutes=10))
    again = world.apply({**message, "delivery_attempt": 2})
    assert (again.acked, 1 in world.names()) == (1, False)
    assert again.dead_letters == ({"too_old_to_be_safe": 1} if origin == "replay" else {})
    assert world.tables.pending_resync == ({} if origin == "replay" else {"planes": "snapshot_rows_too_old"})
