"""What no record tells is noticed by looking, and said with the fix: families, clusters, retention, routing."""

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.app.schema.table_watch import TableWatch
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, compared, healed
from services.bigtable_reader.core.schema.seen import ANY, InspectedTable
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.snapshot.snapshot import Snapshot
from services.bigtable_reader.core.stream.records import ALL_KEYS
from services.bigtable_reader.ports import StreamGoneError
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import FakeCatalog
from tests.fakes.bigtable_resync import FakeResyncStore
from tests.fakes.bigtable_snapshots import FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH, VirtualClock
from tests.fakes.reader_metrics import BigtableMetrics
from tests.fakes.virtual_time import run_in_virtual_time

WATCHES = Watching(excluded_families=("unwatched",))


class ChangingCatalog(FakeCatalog):
    """A catalog that changes at each look, and fails at some."""

    def __init__(self, *changes: Callable[["ChangingCatalog"], None]) -> None:
        super().__init__("f", "g")
        self._changes = iter(changes)
        self.over = asyncio.Event()

    async def seen(self) -> InspectedTable:
        change = next(self._changes, None)
        if change is None:
            self.over.set()
        else:
            change(self)
        return await super().seen()


def watched(
    *changes: Callable[[ChangingCatalog], None],
    kept: PartitionTable | None = None,
    snapshots: SnapshotTable | None = None,
    mirrored: bool = True,
    report_retention: Callable[[timedelta], None] = lambda _retention: None,
) -> tuple[list[Any], list[frozenset[str]]]:
    """Return what was said, and which families were told to be new."""
    learnt: list[frozenset[str]] = []

    async def learn(families: Collection[str]) -> None:
        learnt.append(frozenset(families))

    async def watching() -> None:
        catalog = ChangingCatalog(*changes)
        table = kept or PartitionTable()
        store = FakePartitionStore(table, "reader", timedelta(seconds=10))
        await store.begin([ALL_KEYS], EPOCH)
        asked = FakeSnapshotStore(snapshots or SnapshotTable(), "", timedelta(seconds=10))
        watches = Watching(excluded_families=("unwatched",), mirrored=mirrored)
        resync_requests = ResyncRequests(FakeResyncStore(table), asked, watches.as_json, VirtualClock(), watches)
        watch = TableWatch(
            catalog,
            store,
            BigtableMetrics(),
            learn,
            report_retention,
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

    with capture_logs() as logs:
        run_in_virtual_time(watching())
    return logs, learnt


def nothing(_catalog: ChangingCatalog) -> None:
    """Leave all as it is."""


def changed(**what: Any) -> Callable[[ChangingCatalog], None]:
    """Return what lets something be otherwise."""

    def change(catalog: ChangingCatalog) -> None:
        catalog.found = replace(catalog.found, **what)

    return change


def failing(error: Exception) -> Callable[[ChangingCatalog], None]:
    """Return what lets a look fail."""

    def fail(_catalog: ChangingCatalog) -> None:
        raise error

    return fail


def without(*families: str) -> Callable[[ChangingCatalog], None]:
    """Return what drops families."""
    return lambda catalog: changed(families=catalog.found.families - set(families))(catalog)


def with_also(family: str) -> Callable[[ChangingCatalog], None]:
    """Return what adds a family."""
    return lambda catalog: changed(families=catalog.found.families | {family})(catalog)


def test_what_stays_as_it_is_is_not_mentioned() -> None:
    assert watched(nothing, nothing, nothing) == ([], [])


def test_an_added_family_is_learnt_and_a_dropped_one_is_an_error_with_the_fix() -> None:
    logs, learnt = watched(nothing, changed(families=frozenset({"g", "h"})), nothing)

    assert learnt == [frozenset({"h"})]
    assert [(line["event"], line["families"], line["log_level"]) for line in logs] == [
        ("families_added", ["h"], "info"),
        ("families_dropped", ["f"], "error"),
    ]
    assert logs[1]["fix"]


def test_a_cluster_that_comes_or_goes_is_reported_with_what_follows_from_it() -> None:
    added, dropped = changed(clusters=frozenset({"c1", "c2"})), changed(clusters=frozenset({"c2"}))
    logs, learnt = watched(nothing, added, dropped, nothing)

    assert learnt == []
    assert [(line["event"], line["added"], line["dropped"]) for line in logs] == [
        ("clusters_changed", ["c2"], []),
        ("clusters_changed", [], ["c1"]),
    ]
    assert "low watermark stands still" in logs[0]["why"]
    assert "APP_PROFILE" in logs[1]["fix"]


def test_an_inspection_that_fails_is_made_again() -> None:
    logs, learnt = watched(nothing, failing(TransientError("unavailable")), with_also("h"))

    assert [line["event"] for line in logs] == ["table_inspection_failed", "families_added"]
    assert learnt == [frozenset({"h"})]


def test_what_changed_while_no_reader_ran_is_reported_at_the_first_inspection_and_once() -> None:
    dropped, table = changed(families=frozenset({"g", "h"}), clusters=frozenset({"c2"})), PartitionTable()
    assert watched(nothing, kept=table) == ([], [])
    assert table.seen == InspectedTable(frozenset({"f", "g"}), frozenset({"c1"}), 7 * 86_400, "c1")

    logs, learnt = watched(dropped, nothing, kept=table)

    assert [line["event"] for line in logs] == ["families_added", "families_dropped", "clusters_changed"]
    assert logs[1]["families"] == ["f"]
    assert learnt == []  # the process began with them
    assert watched(dropped, nothing, kept=table) == ([], [])


def test_a_retention_that_becomes_shorter_is_a_warning_with_the_fix_and_a_longer_one_is_none() -> None:
    shorter, longer = changed(retention=86_400), changed(retention=3 * 86_400)
    reported: list[timedelta] = []
    logs, _learnt = watched(nothing, shorter, nothing, longer, report_retention=reported.append)

    assert [(line["event"], line["log_level"], line["was"], line["now"]) for line in logs] == [
        ("retention_shortened", "warning", "7 days, 0:00:00", "1 day, 0:00:00"),
        ("retention_lengthened", "info", "1 day, 0:00:00", "3 days, 0:00:00"),
    ]
    assert "--change-stream-retention-period" in logs[0]["fix"]
    assert [retention.days for retention in reported] == [7, 1, 1, 3, 3], "each look reports it"


@pytest.mark.parametrize("elsewhere", ["c2", ANY])
def test_a_profile_that_routes_elsewhere_stops_the_reader_and_the_next_one_until_it_routes_back(elsewhere: str) -> None:
    moved, table = changed(routed_to=elsewhere), PartitionTable()
    with pytest.raises(MisconfiguredError, match="--route-to=c1"):
        watched(nothing, moved, kept=table)
    with pytest.raises(MisconfiguredError, match="another"):
        watched(moved, kept=table)
    assert watched(nothing, nothing, kept=table) == ([], [])


def test_what_a_profile_routes_to_is_remembered_while_it_cannot_be_inspected() -> None:
    hidden, moved, table = changed(routed_to=None), changed(routed_to="c2"), PartitionTable()
    watched(nothing, kept=table)
    with pytest.raises(MisconfiguredError, match="cluster c1"):
        watched(hidden, hidden, moved, kept=table)
    fresh = PartitionTable()
    assert watched(hidden, moved, kept=fresh) == ([], [])  # the first that is told is where it is read


def found_of(table: PartitionTable) -> list[tuple[str, tuple[str, ...], int]]:
    """Return what the table is marked for."""
    return [(one.kind, one.families, one.run) for one in table.resync.findings] if table.resync is not None else []


def test_a_dropped_family_requests_a_resync_of_the_table_whichever_reader_inspected_before() -> None:
    table = PartitionTable()
    watched(nothing, kept=table)
    assert found_of(table) == []

    snapshots = SnapshotTable(snapshot=Snapshot(run=3, requested_at=EPOCH, parts=(), whole=True))
    watched(without("f"), nothing, kept=table, snapshots=snapshots)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 3)]


def test_what_two_readers_see_is_found_once() -> None:
    table, snapshots = PartitionTable(), SnapshotTable()

    def seen_by_another(catalog: ChangingCatalog) -> None:
        without("f")(catalog)
        table.resync = compared(table.resync, None, ["g"], lambda _family: True, EPOCH, 0, WATCHES)
        snapshots.snapshot = Snapshot(run=1, requested_at=EPOCH, parts=(), whole=True)  # which heals it

    logs, _learnt = watched(nothing, seen_by_another, nothing, kept=table, snapshots=snapshots)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 0)]
    assert [line["event"] for line in logs] == ["families_dropped"], "each says it"


def test_a_family_that_is_dropped_once_more_moves_on_what_heals_it() -> None:
    table, snapshots = PartitionTable(), SnapshotTable()

    def asked_for(_catalog: ChangingCatalog) -> None:
        snapshots.snapshot = Snapshot(run=1, requested_at=EPOCH, parts=(), whole=True)

    watched(nothing, without("f"), asked_for, with_also("f"), without("f"), kept=table, snapshots=snapshots)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 1)]


def missed_without_a_request(table: PartitionTable) -> None:
    assert table.seen is not None
    table.seen = replace(table.seen, families=frozenset({"g"}))


def never_compared(table: PartitionTable) -> None:
    table.resync = None


@pytest.mark.parametrize("left_behind", [missed_without_a_request, never_compared])
def test_a_family_is_missed_that_an_older_version_has_seen(left_behind: Callable[[PartitionTable], None]) -> None:
    table = PartitionTable()
    watched(nothing, kept=table)
    left_behind(table)

    watched(without("f"), nothing, kept=table)

    assert found_of(table) == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 0)]


def test_clusters_and_families_that_are_added_or_not_watched_mark_nothing() -> None:
    clusters, table = changed(clusters=frozenset({"c1", "c2"})), PartitionTable()
    logs, _learnt = watched(nothing, with_also("unwatched"), without("unwatched"), clusters, kept=table)

    assert found_of(table) == []
    assert [line["event"] for line in logs] == ["families_added", "clusters_changed"]


def test_a_change_log_alone_is_never_pending_resync_and_what_is_reported_of_it_is_true() -> None:
    table = PartitionTable()
    logs, _learnt = watched(nothing, without("f"), nothing, kept=table, mirrored=False)

    assert found_of(table) == []
    assert [(line["event"], line["log_level"]) for line in logs] == [("families_dropped", "warning")]
    assert "snapshot" not in logs[0]["fix"]


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (changed(routed_to="c2"), BigtableResyncKind.ROUTED_ELSEWHERE),
        (failing(StreamGoneError("made-up", "it has none")), BigtableResyncKind.STREAM_DISABLED),
    ],
    ids=["a profile that moves", "a stream that is disabled"],
)
def test_what_stops_a_reader_requests_a_resync_of_the_table_before(
    what: Callable[[ChangingCatalog], None], kind: BigtableResyncKind
) -> None:
    table = PartitionTable()
    for changes in ([nothing, what], [what]):
        with pytest.raises(MisconfiguredError):
            watched(*changes, kept=table)
        assert found_of(table) == [(kind, (), 0)]


def test_a_family_that_is_back_is_noticed_by_one_who_never_missed_it() -> None:
    table = PartitionTable()

    def dropped_and_healed_elsewhere(_catalog: ChangingCatalog) -> None:
        found = compared(table.resync, None, ["g"], lambda _family: True, EPOCH, 0, WATCHES)
        table.resync = healed(found, 1, WATCHES.digest)  # and f was back before this look

    watched(nothing, dropped_and_healed_elsewhere, without("f"), kept=table)

    assert [(kind, families) for kind, families, _run in found_of(table)] == [
        (BigtableResyncKind.FAMILIES_DROPPED, ("f",))
    ]
