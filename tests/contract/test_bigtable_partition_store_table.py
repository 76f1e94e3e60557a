"""The partition table in the Bigtable emulator as others see it, and what somebody else did to it."""

from typing import Any

import pytest
from google.cloud.bigtable_admin_v2 import BigtableTableAdminAsyncClient
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcAsyncIOTransport,
)

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table, partition_table_exists
from services.bigtable_reader.core.stream.records import Microseconds
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.contract.bigtable_partitions import (
    LEASE,
    MINUTE,
    PARTITION_TABLE,
    a_store,
    a_stream,
    begun,
    child,
    reached,
    span,
    take,
    whole,
)
from tests.contract.bigtable_rigs import CHILDREN, MUTATE, RESERVED, Rig, holding, replace_cell

VERSIONS: dict[str, Any] = {"max_num_versions": 1}
AGE: dict[str, Any] = {"max_age": {"seconds": 60}}


async def test_a_reader_that_has_gone_is_forgotten(rig: Rig) -> None:
    gone, healthy = rig.healthy("gone"), rig.healthy("healthy")
    await begun(gone, "-")
    await healthy.survey()
    rig.monotonic[0] += 11 * LEASE.total_seconds()
    await healthy.survey()
    await healthy.tend()
    assert (await rig.rows.scan()).readers.keys() == {"healthy"}
    assert (await gone.survey()).readers == {"gone", "healthy"}


async def test_what_waits_while_the_stream_is_paused_has_waited_since_it_was_resumed(rig: Rig) -> None:
    one = rig.healthy("one")
    await begun(one, "-b", "b-")
    (left,) = await take(one, "a")
    await one.close(reached(left), [child("-b", "-")])
    before = await rig.rows.topology()
    assert before is not None
    await one.pause()
    paused = await rig.rows.topology()
    await one.resume()
    after = await rig.rows.topology()
    assert paused is not None
    assert after is not None
    assert paused.paused_since is not None
    assert after.paused_since is None
    waiting, reading = sorted(after.topology.stream_ranges, key=lambda stream_range: stream_range.is_readable)
    assert after.born[waiting.id] >= paused.paused_since > before.born[waiting.id]
    assert after.born[reading.id] == before.born[reading.id]
    assert after.topology == before.topology


@pytest.mark.parametrize("pausing", [True, False])
async def test_a_late_pause_or_resumption_does_not_undo_what_was_asked_for_since(rig: Rig, pausing: bool) -> None:
    one, way = rig.owner("one")
    await begun(one, "-b", "b-")
    before = await rig.rows.topology()
    if not pausing:
        await one.pause()
    asked, opposite = (one.pause, one.resume) if pausing else (one.resume, one.pause)
    way.restart_counting({2: "late"})  # a read, then the write
    with pytest.raises(TransientError):
        await asked()
    assert await asked()
    assert await opposite()
    await way.deliver()
    survey = await one.survey()
    assert (survey.paused_since is None) is pausing
    after = await rig.rows.topology()
    assert before is not None
    assert after is not None
    assert after.topology == before.topology


async def test_a_pause_or_resumption_whose_answer_was_lost_is_known_for_ones_own(rig: Rig) -> None:
    one, way = rig.owner("one")
    await begun(one, "-")
    for asked in (one.pause, one.resume):
        way.restart_counting({2: "after"})  # a look, then the write
        assert await asked()
        assert not await asked()


async def test_a_view_shows_which_reader_reads_what_and_is_seen_by_no_reader(rig: Rig) -> None:
    viewer = a_store(rig.owner("any")[1], rig.stream, "viewer", rig.monotonic)
    now = (await rig.healthy("other").survey()).now
    assert (await viewer.view(now)).stream_ranges == ()
    one, two = rig.healthy("one"), rig.healthy("two")
    await begun(one, "-b", "b-d", "d-")
    left, middle, _right = await take(one, "a", "c", "e")
    await one.advance([reached(left, minutes=1)])
    await one.advance([reached(middle)], release=True)
    now = (await two.survey()).now

    survey = await viewer.view(now)
    shown_of = [(str(p.range), survey.saved[p.id].owner, survey.saved[p.id].free) for p in survey.stream_ranges]
    assert shown_of == [("[, b)", "one", False), ("[b, d)", "", True), ("[d, end)", "one", False)]
    assert survey.saved[left.stream_range.id].low_watermark == left.low_watermark + MINUTE
    assert survey.readers == {"one", "two", "other"}
    latest = await two.survey()
    assert latest.readers == {"one", "two", "other"}
    assert (await viewer.view(Microseconds(0))).now == latest.now, "this clock is behind a reader's presence"

    later = await viewer.view(Microseconds(now + int(2 * LEASE.total_seconds() * 1_000_000)))
    assert {saved.owner for saved in later.saved.values()} == {""}
    assert later.readers == frozenset()


@pytest.mark.parametrize(
    ("family", "qualifier", "value"),
    [
        ("piece", None, None),
        ("shape", b"version", None),
        ("shape", b"about", b"{}"),
        ("shape", b"about", b'{"format":9,"table":"t","life":"x","start":1}'),
        ("partition", b"lease", b"1 RUNNING"),
        ("partition", b"lease", b"1 2 x DREAMING"),
        ("piece", None, b"{"),
        ("partition", b"saved", None),
        ("partition", b"saved", b"{"),
    ],
)
async def test_rows_that_are_not_what_a_reader_wrote_are_refused(
    rig: Rig, family: str, qualifier: bytes | None, value: bytes | None
) -> None:
    store = rig.healthy()
    owned = await holding(rig, store)
    kind = f"partition#{owned.stream_range.id}" if family == "partition" else "topology"
    column = owned.stream_range.id.encode() if qualifier is None else qualifier
    await replace_cell(rig.opened[0], f"{rig.stream}#{kind}", family, column, value)
    for each in (store, rig.healthy("another")):
        with pytest.raises(MisconfiguredError, match=f"{rig.stream}#"):
            await each.survey()

    fixed = Rig(rig.address, opened=rig.opened)  # another stream, as the message has it
    await begun(fixed.healthy(), "-")
    (stream_range,) = (await whole(fixed.healthy())).stream_ranges
    assert stream_range.min_version > owned.min_version + RESERVED or qualifier == b"saved"


async def test_stream_ranges_that_were_deleted_are_not_taken_for_a_stream_that_never_began(rig: Rig) -> None:
    store = rig.healthy()
    owned = await holding(rig, store)
    request: Any = MUTATE.request(table_name=PARTITION_TABLE.name, row_key=f"{rig.stream}#topology".encode())
    request.mutations.add().delete_from_row.SetInParent()
    await rig.opened[0].call(MUTATE, PARTITION_TABLE, request)
    assert (await store.survey()).stream_ranges == ()
    await store.tend()
    assert (await rig.rows.scan()).partitions.keys() == {owned.stream_range.id}  # left, to be looked into
    assert await store.advance([reached(owned, reserved_up_to=10**9)]) == frozenset()
    with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
        await store.close(reached(owned, reserved_up_to=10**9), CHILDREN)

    start = (await store.survey()).now
    assert await store.begin([span("-")], start)  # a new life: above all versions of the old one
    (stream_range,) = (await whole(store)).stream_ranges
    assert stream_range.min_version > owned.min_version + 10**9
    assert stream_range.id != owned.stream_range.id
    (taken,) = await take(store, "a")
    assert taken.position.start == start


def test_a_stream_needs_a_name_that_row_keys_can_begin_with() -> None:
    for name in ("", "a#b"):
        with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
            PartitionRows(None, PARTITION_TABLE, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("families", "why"),
    [
        ({"shape": {}, "piece": {}}, "is no partition table"),
        ({"piece": {"gc_rule": AGE}}, "maxversions=1"),
        ({"shape": {"gc_rule": {"union": {"rules": [VERSIONS, AGE]}}}}, "maxversions=1"),
        ({"shape": {"gc_rule": {"intersection": {"rules": [VERSIONS, AGE]}}}}, None),
        ({"shape": {"gc_rule": {"intersection": {"rules": [{"max_age": {"seconds": 60}}]}}}}, "maxversions=1"),
        ({}, None),
    ],
)
async def test_a_table_that_would_lose_what_is_written_is_refused(
    bigtable_emulator: str, families: dict[str, Any], why: str | None
) -> None:
    channels = BigtableChannels(bigtable_emulator)
    table = Table("projects/p/instances/i", f"t{a_stream()}")
    client = BigtableTableAdminAsyncClient(transport=BigtableTableAdminGrpcAsyncIOTransport(channel=channels.admin))
    whole_set: dict[str, Any] = {name: {} for name in ("shape", "piece", "partition", "reader")}
    described = families if why == "is no partition table" else whole_set | families
    await client.create_table(
        request={"parent": table.instance, "table_id": table.id, "table": {"column_families": described}}
    )
    try:
        assert await partition_table_exists(channels, table)
        assert not await partition_table_exists(channels, Table(table.instance, "another"))
        if why is None:
            await create_partition_table(channels, PartitionRows(channels, table, "s"))
        else:
            with pytest.raises(MisconfiguredError, match=why):
                await create_partition_table(channels, PartitionRows(channels, table, "s"))
    finally:
        await channels.close()
