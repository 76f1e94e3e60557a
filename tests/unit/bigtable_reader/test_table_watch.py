"""What no record tells is noticed by looking, and said with the fix: families, clusters, retention, routing."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.app.schema.table_watch import LENGTHEN_RETENTION, TableWatch
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, compared, healed
from services.bigtable_reader.core.schema.seen import ANY, InspectedTable
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.snapshot.snapshot import Snapshot
from services.bigtable_reader.core.stream.records import ALL_KEYS
from services.bigtable_reader.ports import StreamGoneError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.position_age import PositionAge
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import FakeCatalog, FakeMetrics
from tests.fakes.bigtable_resync import FakeResyncStore
from tests.fakes.bigtable_snapshots import FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH, VirtualClock

WATCHES = Watching(excluded_families=("unwatched",))


class Looking(FakeCatalog):
    """A catalog that changes at each look, and fails at some."""

    def __init__(self, *looks: Callable[["Looking"], None]) -> None:
        super().__init__("f", "g")
        self._looks = iter(looks)
        self.over = asyncio.Event()

    async def seen(self) -> InspectedTable:
        look = next(self._looks, None)
        if look is None:
            self.over.set()
        else:
            look(self)
        return await super().seen()

    def change(self, **what: Any) -> None:
        """Let something be otherwise."""
        self.found = replace(self.found, **what)


def watched(
    *looks: Callable[[Looking], None],
    kept: PartitionTable | None = None,
    behind: Sequence[timedelta] = (),
    paused: bool = False,
    snapshots: SnapshotTable | None = None,
    mirrored: bool = True,
) -> tuple[list[Any], list[frozenset[str]]]:
    """Return what was said, and which families were told to be new."""
    learnt: list[frozenset[str]] = []
    ages, age = iter(behind), PositionAge(FakeMetrics(), LENGTHEN_RETENTION)

    async def learn(families: Collection[str]) -> None:
        learnt.append(frozenset(families))

    async def watching() -> None:
        catalog = Looking(*looks)
        table = kept or PartitionTable(VirtualClock().now)
        store = FakePartitionStore(table, "reader", timedelta(seconds=10), asyncio.get_running_loop().time)
        await store.begin([ALL_KEYS], EPOCH)
        clock = asyncio.get_running_loop().time
        asked = FakeSnapshotStore(snapshots or SnapshotTable(), "", timedelta(seconds=10), clock)
        watches = Watching(excluded_families=("unwatched",), mirrored=mirrored)
        resync_requests = ResyncRequests(FakeResyncStore(table), asked, watches.as_json, VirtualClock(), watches)
        watch = TableWatch(
            catalog,
            store,
            FakeMetrics(),
            learn,
            lambda retention: age.report(next(ages, timedelta()), retention, paused=paused),
            resync_requests,
        )
        task = asyncio.create_task(watch.keep_inspecting(timedelta(milliseconds=1)))
        over = asyncio.create_task(catalog.over.wait())
        async with asyncio.timeout(30):
            await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        over.cancel()
        (ended, _over) = await asyncio.gather(task, over, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    with capture_logs() as said:
        asyncio.run(watching())
    return said, learnt


def nothing(_catalog: Looking) -> None:
    """Leave all as it is."""


def test_what_stays_as_it_is_is_not_mentioned() -> None:
    assert watched(nothing, nothing, nothing) == ([], [])


def test_an_added_family_is_learnt_and_a_dropped_one_is_an_error_with_the_fix() -> None:
    def changed(catalog: Looking) -> None:
        catalog.change(families=frozenset({"g", "h"}))

    said, learnt = watched(nothing, changed, nothing)

    assert learnt == [frozenset({"h"})]
    assert [(line["event"], line["families"], line["log_level"]) for line in said] == [
        ("families_added", ["h"], "info"),
        ("families_dropped", ["f"], "error"),
    ]
    assert said[1]["fix"]


def test_a_cluster_that_comes_or_goes_is_said_with_what_follows_from_it() -> None:
    def added(catalog: Looking) -> None:
        catalog.change(clusters=frozenset({"c1", "c2"}))

    def dropped(catalog: Looking) -> None:
        catalog.change(clusters=frozenset({"c2"}))

    said, learnt = watched(nothing, added, dropped, nothing)

    assert learnt == []
    assert [(line["event"], line["added"], line["dropped"]) for line in said] == [
        ("clusters_changed", ["c2"], []),
        ("clusters_changed", [], ["c1"]),
    ]
    assert "low watermark stands still" in said[0]["why"]
    assert "APP_PROFILE" in said[1]["fix"]


def test_a_look_that_fails_is_made_again() -> None:
    def away(_catalog: Looking) -> None:
        raise TransientError("away")

    def changed(catalog: Looking) -> None:
        catalog.change(families=frozenset({"f", "g", "h"}))

    said, learnt = watched(nothing, away, changed)

    assert [line["event"] for line in said] == ["table_not_looked_at", "families_added"]
    assert learnt == [frozenset({"h"})]


def test_what_changed_while_no_reader_ran_is_said_at_the_first_look_and_once() -> None:
    def dropped(catalog: Looking) -> None:
        catalog.change(families=frozenset({"g", "h"}), clusters=frozenset({"c2"}))

    table = PartitionTable(VirtualClock().now)
    assert watched(nothing, kept=table) == ([], [])
    assert table.seen == InspectedTable(frozenset({"f", "g"}), frozenset({"c1"}), 7 * 86_400, "c1")

    said, learnt = watched(dropped, nothing, kept=table)

    assert [line["event"] for line in said] == ["families_added", "families_dropped", "clusters_changed"]
    assert said[1]["families"] == ["f"]
    assert learnt == []  # the process began with them
    assert watched(dropped, nothing, kept=table) == ([], [])


def test_a_retention_that_becomes_shorter_is_a_warning_with_the_fix_and_a_longer_one_is_none() -> None:
    def shorter(catalog: Looking) -> None:
        catalog.change(retention=86_400)

    def longer(catalog: Looking) -> None:
        catalog.change(retention=3 * 86_400)

    said, _learnt = watched(nothing, shorter, nothing, longer, nothing)

    assert [(line["event"], line["log_level"], line["was"], line["now"]) for line in said] == [
        ("retention_shortened", "warning", "7 days, 0:00:00", "1 day, 0:00:00"),
        ("retention_lengthened", "info", "1 day, 0:00:00", "3 days, 0:00:00"),
    ]
    assert "--change-stream-retention-period" in said[0]["fix"]


@pytest.mark.parametrize("elsewhere", ["c2", ANY])
def test_a_profile_that_routes_elsewhere_stops_the_reader_and_the_next_one_until_it_routes_back(elsewhere: str) -> None:
    def moved(catalog: Looking) -> None:
        catalog.change(routed_to=elsewhere)

    table = PartitionTable(VirtualClock().now)
    with pytest.raises(MisconfiguredError, match="--route-to=c1"):
        watched(nothing, moved, kept=table)
    with pytest.raises(MisconfiguredError, match="another"):
        watched(moved, kept=table)
    assert watched(nothing, nothing, kept=table) == ([], [])


def test_what_a_profile_routes_to_is_remembered_while_nobody_may_ask() -> None:
    def hidden(catalog: Looking) -> None:
        catalog.change(routed_to=None)

    def moved(catalog: Looking) -> None:
        catalog.change(routed_to="c2")

    table = PartitionTable(VirtualClock().now)
    watched(nothing, kept=table)
    with pytest.raises(MisconfiguredError, match="cluster c1"):
        watched(hidden, hidden, moved, kept=table)
    fresh = PartitionTable(VirtualClock().now)
    assert watched(hidden, moved, kept=fresh) == ([], [])  # the first that is told is where it is read


def test_a_low_watermark_that_is_half_the_retention_old_is_a_warning_and_soon_an_error_each_said_once() -> None:
    days = (1, 3.6, 4, 5.7, 6, 4, 1, 3.6)

    said, _learnt = watched(*[nothing] * len(days), behind=[timedelta(days=one) for one in days])

    assert [(line["event"], line["log_level"], line["behind"]) for line in said] == [
        ("position_is_ageing", "warning", str(timedelta(days=3.6))),
        ("position_is_ageing", "error", str(timedelta(days=5.7))),
        ("position_is_ageing", "warning", str(timedelta(days=3.6))),
    ]
    assert all("--change-stream-retention-period" in line["fix"] for line in said)


def test_a_position_that_ages_because_of_a_pause_is_said_with_what_ends_it() -> None:
    old = [timedelta(days=days) for days in (1, 4, 6)]
    said, _learnt = watched(nothing, nothing, nothing, behind=old, paused=True)

    found = [(line["log_level"], line["paused"]) for line in said if line["event"] == "position_is_ageing"]
    assert found == [("warning", True), ("error", True)]
    assert all("`resume`" in line["fix"] for line in said)


def found_of(table: PartitionTable) -> list[tuple[str, tuple[str, ...], int]]:
    """Return what the table is marked for."""
    return [(one.kind, one.families, one.run) for one in table.resync.findings] if table.resync is not None else []


def without(*families: str) -> Callable[[Looking], None]:
    """Return what drops families."""

    def dropped(catalog: Looking) -> None:
        catalog.change(families=catalog.found.families - set(families))

    return dropped


def with_also(family: str) -> Callable[[Looking], None]:
    """Return what adds a family."""

    def added(catalog: Looking) -> None:
        catalog.change(families=catalog.found.families | {family})

    return added


def test_a_dropped_family_marks_the_table_whoever_looked_before() -> None:
    table = PartitionTable(VirtualClock().now)
    watched(nothing, kept=table)
    assert found_of(table) == []

    snapshots = SnapshotTable(snapshot=Snapshot(run=3, requested_at=EPOCH, parts=(), whole=True))
    watched(without("f"), nothing, kept=table, snapshots=snapshots)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 3)]


def test_what_two_readers_see_is_found_once() -> None:
    table, snapshots = PartitionTable(VirtualClock().now), SnapshotTable()

    def seen_by_another(catalog: Looking) -> None:
        catalog.change(families=frozenset({"g"}))
        table.resync = compared(table.resync, None, ["g"], lambda _family: True, EPOCH, 0, WATCHES)
        snapshots.snapshot = Snapshot(run=1, requested_at=EPOCH, parts=(), whole=True)  # which heals it

    said, _learnt = watched(nothing, seen_by_another, nothing, kept=table, snapshots=snapshots)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 0)]
    assert [line["event"] for line in said] == ["families_dropped"], "each says it"


def test_a_family_that_is_dropped_once_more_moves_on_what_heals_it() -> None:
    table, snapshots = PartitionTable(VirtualClock().now), SnapshotTable()

    def asked_for(_catalog: Looking) -> None:
        snapshots.snapshot = Snapshot(run=1, requested_at=EPOCH, parts=(), whole=True)

    watched(nothing, without("f"), asked_for, with_also("f"), without("f"), kept=table, snapshots=snapshots)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 1)]


def test_what_an_older_version_has_remembered_without_a_mark_is_found_all_the_same() -> None:
    table = PartitionTable(VirtualClock().now)
    watched(nothing, kept=table)
    assert table.seen is not None
    table.seen = replace(table.seen, families=frozenset({"g"}))

    watched(without("f"), nothing, kept=table)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 0)]


def test_a_table_of_an_older_version_is_compared_with_what_that_has_seen() -> None:
    table = PartitionTable(VirtualClock().now)
    watched(nothing, kept=table)
    table.resync = None

    watched(without("f"), nothing, kept=table)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 0)]


def test_clusters_and_families_that_are_added_or_not_watched_mark_nothing() -> None:
    def clusters(catalog: Looking) -> None:
        catalog.change(clusters=frozenset({"c1", "c2"}))

    table = PartitionTable(VirtualClock().now)
    said, _learnt = watched(nothing, with_also("unwatched"), without("unwatched"), clusters, kept=table)

    assert found_of(table) == []
    assert [line["event"] for line in said] == ["families_added", "clusters_changed"]


def test_a_change_log_alone_is_never_marked_and_what_is_said_of_it_is_true() -> None:
    table = PartitionTable(VirtualClock().now)
    said, _learnt = watched(nothing, without("f"), nothing, kept=table, mirrored=False)

    assert found_of(table) == []
    assert [(line["event"], line["log_level"]) for line in said] == [("families_dropped", "warning")]
    assert "snapshot" not in said[0]["fix"]


def test_a_stream_that_is_disabled_and_a_profile_that_moves_mark_the_table_before_the_reader_stops() -> None:
    def moved(catalog: Looking) -> None:
        catalog.change(routed_to="c2")

    def disabled(_catalog: Looking) -> None:
        raise StreamGoneError("made-up", "it has none")

    for what, kind in (
        (moved, BigtableResyncKind.ROUTED_ELSEWHERE),
        (disabled, BigtableResyncKind.STREAM_DISABLED),
    ):
        table = PartitionTable(VirtualClock().now)
        with pytest.raises(MisconfiguredError):
            watched(nothing, what, kept=table)
        assert found_of(table) == [(kind, (), 0)]
        with pytest.raises(MisconfiguredError):
            watched(what, kept=table)
        assert found_of(table) == [(kind, (), 0)]


def test_a_family_that_is_back_is_noticed_by_one_who_never_missed_it() -> None:
    table = PartitionTable(VirtualClock().now)

    def dropped_and_healed_elsewhere(_catalog: Looking) -> None:
        found = compared(table.resync, None, ["g"], lambda _family: True, EPOCH, 0, WATCHES)
        table.resync = healed(found, 1, WATCHES.digest)  # and f was back before this look

    watched(nothing, dropped_and_healed_elsewhere, without("f"), kept=table)

    assert [(kind, families) for kind, families, _run in found_of(table)] == [
        (BigtableResyncKind.FAMILIES_DROPPED, ("f",))
    ]
