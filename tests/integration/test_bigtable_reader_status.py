"""`status` of the Bigtable reader: what the partition table says, whether or not a reader runs."""

import asyncio
import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.doctor.inspection import inspect_cluster
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream.partitions import BigtableProgress
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.commands import status
from services.bigtable_reader.wiring.stores import partition_rows, partition_store, snapshot_store, watched_table
from shared.runtime.findings import Level
from shared.runtime.settings import read_settings
from tests.integration.bigtable_front import CLUSTER, Front

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(front: Front) -> Settings:
    """Return the settings of a reader of a table of its own."""
    return read_settings(Settings, {**front.table("f").settings(), "LEASE_DURATION": "2s"})


async def shown(settings: Settings) -> tuple[int, dict[str, Any]]:
    out = StringIO()
    code = await status(settings, out, as_json=True)
    found: dict[str, Any] = json.loads(out.getvalue())
    return code, found


async def test_status_shows_a_stream_before_during_and_after_its_reading(
    settings: Settings,
) -> None:
    code, before = await shown(settings)
    assert (code, before["state"], before["partitions"]["READY"]) == (1, "not started yet", 0)
    assert before["snapshots"] == []

    channels = BigtableChannels(settings.bigtable_emulator_host)
    try:
        rows = partition_rows(settings, channels)
        await create_partition_table(channels, rows)
        reader = partition_store(settings, rows, "reader-1", settings.keep_messages_for)
        start = (await reader.survey()).now
        await reader.begin([KeyRange(b"", b"m"), KeyRange(b"m", b"")], start)
        owned, released = await reader.claim((await reader.survey()).stream_ranges)
        await reader.advance(
            [BigtableProgress(released, released.position, start, released.reserved_up_to)], release=True
        )
        await reader.advance([BigtableProgress(owned, owned.position, start, owned.reserved_up_to)])
        await reader.survey()
        await snapshot_store(settings, channels, "").request([ALL_KEYS], start, again=False, whole=True)
        code, reading = await shown(settings)
        assert (code, reading["state"]) == (0, "reading")
        assert reading["partitions"] == {"READY": 1, "RUNNING": 1, "CLOSING": 0, "WAITING": 0}
        assert reading["readers"] == [{"owner": "reader-1", "partitions": 1}]
        assert reading["unread"] == [str(released.stream_range.range)]
        assert reading["lag_seconds"] < reading["retention_seconds"]
        (snapshot,) = reading["snapshots"]
        assert (snapshot["state"], snapshot["rows"], snapshot["ranges_left"]) == ("READING", 0, 1)
        assert snapshot["waits"]["why"] == "no reader has taken any of it yet"

        await asyncio.sleep(3)  # it has died: its row stays, and is not renewed
        code, unread = await shown(settings)
        assert (code, unread["state"], unread["readers"]) == (1, "no reader", [])
        assert unread["partitions"]["READY"] == 2
        assert unread["unread"] == ["[, end)"]
        assert unread["snapshots"][0]["waits"]["fix"] == "start one"
    finally:
        await channels.close()


async def test_doctor_compares_the_cluster_that_the_positions_are_of(settings: Settings, front: Front) -> None:
    table = watched_table(settings)
    channels = BigtableChannels(settings.bigtable_emulator_host)
    try:
        rows = partition_rows(settings, channels)
        assert await inspect_cluster(channels, table, rows) is None, "there is no partition table yet"
        await create_partition_table(channels, rows)
        store = partition_store(settings, rows, "reader", timedelta(days=1))
        await store.begin([KeyRange(b"", b"")], Microseconds(1))
        assert await inspect_cluster(channels, table, rows) is None, "nobody has looked where it routes to"
        await store.remember(InspectedTable(frozenset({"f"}), frozenset(), routed_to=CLUSTER))
        found = await inspect_cluster(channels, table, rows)
        assert found is not None
        assert (found.level, found.detail) == (Level.OK, f"{CLUSTER}, which the positions are of")
        with front.failing("GetAppProfile", status="PERMISSION_DENIED"):
            found = await inspect_cluster(channels, table, rows)
        assert found is not None
        assert found.level is Level.WARNING
        await store.remember(InspectedTable(frozenset({"f"}), frozenset(), routed_to="another-c1"))
        found = await inspect_cluster(channels, table, rows)
        assert found is not None
        assert found.level is Level.ERROR
        assert f"from cluster another-c1, and the app profile routes to cluster {CLUSTER}" in found.detail
        assert "--route-to=another-c1" in found.fix
    finally:
        await channels.close()
