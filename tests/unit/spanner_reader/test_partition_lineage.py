"""Splits, moves and merges in every order of arrival, readers that die or go on as zombies, rows that are forgotten.

Every partition is read after all its parents, none is forgotten too early or comes back, and none waits for ever.
"""

import asyncio
import itertools
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.spanner_reader.core.stream.partitions import (
    NewPartition,
    PartitionState,
    SpannerPartition,
    claimable,
    is_due,
)
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_reader import FakePartitionStore, Table
from tests.seeds import examples

LEASE = timedelta(seconds=30)
KEEP = timedelta(days=1)
OWNERS = st.sampled_from(("one", "two", "three"))
SECOND = 1_000_000_000

T = TypeVar("T")


class Lineage(RuleBasedStateMachine):
    """What Spanner does to partitions, what readers do, and what the table then has to say."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.table = Table()
        self.stores = {owner: FakePartitionStore(self.table, owner, LEASE) for owner in ("one", "two", "three")}
        self.believes: dict[str, dict[PartitionToken, SpannerPartition]] = {owner: {} for owner in self.stores}
        """What each reader believes to hold; a zombie believes too much."""
        self.ends: dict[PartitionToken, list[NewPartition]] = {}
        """The child records of partitions that Spanner has ended, whether or not anybody has read so far."""
        self.parents: dict[PartitionToken, frozenset[PartitionToken]] = {ROOT: frozenset()}
        self.done: set[PartitionToken] = set()
        self.names = (PartitionToken(f"p{number}") for number in itertools.count())

    def now(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        """Let one reader live on undisturbed: it comes to the end of everything that Spanner has ended."""
        for _round in range(len(self.parents) + 1):
            self.table.clock.step(LEASE * 2)
            self.claim("one")
            for token in list(self.believes["one"]):
                self.finish("one", token)
        assert self.ends.keys() <= self.done
        self.loop.close()

    @initialize(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        self.now(self.stores["one"].add_root(Nanoseconds(0), None))
        self.born([ROOT], count, parents=frozenset())

    def born(self, ending: list[PartitionToken], count: int, parents: frozenset[PartitionToken]) -> None:
        time = Nanoseconds(len(self.parents) * SECOND)
        made = [NewPartition(next(self.names), parents, time) for _ in range(count)]
        self.parents |= {child.token: parents for child in made}
        for token in ending:
            self.ends[token] = made

    def alive(self) -> list[PartitionToken]:
        return [token for token in self.parents if token not in self.ends]

    @rule(data=st.data(), merged=st.integers(1, 3), count=st.integers(1, 3))
    def reshape(self, data: st.DataObject, merged: int, count: int) -> None:
        """End some partitions in Spanner: a split, a move, a merge, or all of it at once."""
        ending = data.draw(st.permutations(self.alive()))[:merged]
        if len(self.parents) < 40:
            self.born(ending, count, frozenset(ending))

    @rule(owner=OWNERS)
    def claim(self, owner: str) -> None:
        store = self.stores[owner]
        survey = self.now(store.survey())
        found = claimable(survey.unfinished, owner=owner, holding=self.believes[owner].keys(), now=survey.now, end=None)
        for partition in self.now(store.claim([p.token for p in found], None)):
            assert self.parents[partition.token] <= self.done  # after all its parents
            assert partition.token not in self.done
            self.believes[owner][partition.token] = partition

    @rule(owner=OWNERS, data=st.data())
    def read_to_the_end(self, owner: str, data: st.DataObject) -> None:
        if ended := sorted(self.believes[owner].keys() & self.ends.keys()):
            self.finish(owner, data.draw(st.sampled_from(ended)), again=data.draw(st.booleans()))

    @rule(owner=OWNERS)
    def work(self, owner: str) -> None:
        """Do what a reader does that nothing disturbs."""
        self.claim(owner)
        for token in sorted(self.believes[owner].keys() & self.ends.keys()):
            self.finish(owner, token)

    def finish(self, owner: str, token: PartitionToken, *, again: bool = False) -> None:
        if token not in self.ends:
            return
        owned = self.believes[owner][token]
        row = self.table.rows.get(token)
        ours = row is not None and row.owner == owner and row.fencing == owned.fencing
        added = self.now(self.stores[owner].finish(SpannerProgress(owned, owned.watermark), self.ends[token]))
        assert (added is not None) == ours
        if ours:
            self.done.add(token)
        if not again:  # else the answer was lost, and it is asked once more, perhaps much later
            del self.believes[owner][token]

    @rule(owner=OWNERS)
    def save(self, owner: str) -> None:
        progress = [SpannerProgress(owned, owned.watermark) for owned in self.believes[owner].values()]
        for token in self.now(self.stores[owner].advance(progress)):
            del self.believes[owner][token]

    @rule(owner=OWNERS)
    def die(self, owner: str) -> None:
        self.believes[owner].clear()

    @rule()
    def let_leases_end(self) -> None:
        self.table.clock.step(LEASE * 2)

    @precondition(lambda self: bool(self.done))
    @rule(owner=OWNERS)
    def forget(self, owner: str) -> None:
        self.table.clock.step(KEEP * 2)
        self.now(self.stores[owner].forget_finished(KEEP))

    @invariant()
    def the_table_knows_what_is_left_and_nothing_waits_for_ever(self) -> None:
        if not self.table.rows:
            return  # not started
        rows = {token: self.table.row(token) for token in self.table.rows}
        known = {child.token for token in self.done for child in self.ends[token]} | {ROOT}
        unfinished = {token for token, row in rows.items() if row.state is not PartitionState.FINISHED}
        assert unfinished == known - self.done  # a forgotten one never comes back, an unfinished one never goes
        for token in unfinished:
            assert is_due(rows[token], None) == (self.parents[token] <= self.done)


Lineage.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
TestLineage = Lineage.TestCase
