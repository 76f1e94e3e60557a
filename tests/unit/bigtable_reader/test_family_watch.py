"""What no record tells: families and clusters that come and go are noticed by looking, and said with the cure."""

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from structlog.testing import capture_logs

from services.bigtable_reader.core.records import ALL_KEYS
from services.bigtable_reader.core.seen import Seen
from services.bigtable_reader.family_watch import FamilyWatch
from shared.contracts.errors import TransientError
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import FakeCatalog, FakeMetrics
from tests.fakes.bigtable_table import EPOCH, VirtualClock


class Looking(FakeCatalog):
    """A catalog that changes at each look, and fails at some."""

    def __init__(self, *looks: Callable[["Looking"], None]) -> None:
        super().__init__("f", "g")
        self._looks = iter(looks)
        self.over = asyncio.Event()

    async def families(self) -> Collection[str]:
        look = next(self._looks, None)
        if look is None:
            self.over.set()
        else:
            look(self)
        return await super().families()


def watched(
    *looks: Callable[[Looking], None], kept: PartitionTable | None = None
) -> tuple[list[Any], list[frozenset[str]]]:
    """Return what was said, and which families were told to be new."""
    learnt: list[frozenset[str]] = []

    async def learn(families: Collection[str]) -> None:
        learnt.append(frozenset(families))

    async def watching() -> None:
        catalog = Looking(*looks)
        table = kept or PartitionTable(VirtualClock().now)
        store = FakePartitionStore(table, "reader", timedelta(seconds=10), asyncio.get_running_loop().time)
        await store.begin([ALL_KEYS], EPOCH)
        watch = FamilyWatch(catalog, store, FakeMetrics(), timedelta(milliseconds=1), learn)
        task = asyncio.create_task(watch.keep_looking())
        async with asyncio.timeout(30):
            await catalog.over.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with capture_logs() as said:
        asyncio.run(watching())
    return said, learnt


def nothing(_catalog: Looking) -> None:
    """Leave all as it is."""


def test_what_stays_as_it_is_is_not_mentioned() -> None:
    assert watched(nothing, nothing, nothing) == ([], [])


def test_an_added_family_is_learnt_and_a_dropped_one_is_an_error_with_the_cure() -> None:
    def changed(catalog: Looking) -> None:
        catalog.found = {"g", "h"}

    said, learnt = watched(nothing, changed, nothing)

    assert learnt == [frozenset({"h"})]
    assert [(line["event"], line["families"], line["log_level"]) for line in said] == [
        ("families_added", ["h"], "info"),
        ("families_dropped", ["f"], "error"),
    ]
    assert said[1]["fix"]


def test_a_cluster_that_comes_or_goes_is_said_with_what_follows_from_it() -> None:
    def added(catalog: Looking) -> None:
        catalog.found_clusters = {"c1", "c2"}

    def dropped(catalog: Looking) -> None:
        catalog.found_clusters = {"c2"}

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
        catalog.found = {"f", "g", "h"}

    said, learnt = watched(nothing, away, changed)

    assert [line["event"] for line in said] == ["families_not_looked_at", "families_added"]
    assert learnt == [frozenset({"h"})]


def test_what_changed_while_no_reader_ran_is_said_at_the_first_look_and_once() -> None:
    def dropped(catalog: Looking) -> None:
        catalog.found, catalog.found_clusters = {"g", "h"}, {"c2"}

    table = PartitionTable(VirtualClock().now)
    assert watched(nothing, kept=table) == ([], [])
    assert table.seen == Seen(frozenset({"f", "g"}), frozenset({"c1"}))

    said, learnt = watched(dropped, nothing, kept=table)

    assert [line["event"] for line in said] == ["families_added", "families_dropped", "clusters_changed"]
    assert said[1]["families"] == ["f"]
    assert learnt == []  # the process began with them
    assert watched(dropped, nothing, kept=table) == ([], [])
