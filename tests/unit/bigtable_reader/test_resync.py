"""A mark stays until all rows were asked for after what was found, and were published; whoever acts when, on old news.

The machine lets readers be as late as they like between what they read and what they write. Each write is decided by
what is stored at that moment, as conditional writes are.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from msgspec.structs import replace

from services.bigtable_reader.core.schema import resync as core
from services.bigtable_reader.core.schema.resync import (
    BigtableResyncKind,
    BigtableResyncRequest,
    Resync,
    fix_of,
    resync_request_of,
)
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.snapshot.snapshot import (
    PartProgress,
    Snapshot,
    advanced,
    cancelled,
    claimed,
    requested,
    requested_unless_after,
)
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from tests.fakes.bigtable_table import EPOCH
from tests.seeds import examples

WATCHING = Watching()


@dataclass
class Found:
    """Something that somebody has found at a moment, and what was read after it."""

    at: int
    kind: BigtableResyncKind
    run: int = 0


@dataclass(frozen=True)
class Shown:
    """A mark as somebody has read it at a moment."""

    at: int
    resync_request: BigtableResyncRequest


class ResyncMachine(RuleBasedStateMachine):
    """Readers and commands, interleaved in any way."""

    found, seen, complete, shown = Bundle("found"), Bundle("seen"), Bundle("complete"), Bundle("shown")

    def __init__(self) -> None:
        super().__init__()
        self.moment = 0
        self.snapshot: Snapshot | None = None
        self.kept: Resync | None = None
        self.asked_at: dict[int, int] = {}
        self.stored: list[tuple[Found, int]] = []
        self.completed: set[int] = set()
        self.removed: list[Shown] = []

    def keep(self, after: Resync | None) -> None:
        self.kept = self.kept if after is None else after

    @rule(
        target=found,
        kind=st.sampled_from((BigtableResyncKind.ROUTED_ELSEWHERE, BigtableResyncKind.STREAM_DISABLED)),
    )
    def something_is_found(self, kind: BigtableResyncKind) -> Found:
        self.moment += 1
        return Found(self.moment, kind)

    @rule(target=seen, one=found)
    def the_latest_snapshot_is_read(self, one: Found) -> Found:
        return Found(one.at, one.kind, 0 if self.snapshot is None else self.snapshot.run)

    @rule(one=seen)
    def it_is_stored(self, one: Found) -> None:
        self.moment += 1
        self.keep(core.with_finding(self.kept, one.kind, Microseconds(EPOCH + self.moment), one.run))
        self.stored.append((one, self.moment))

    @rule(whole=st.booleans())
    def rows_are_asked_for(self, whole: bool) -> None:
        ranges = [ALL_KEYS if whole else KeyRange(b"a", b"b")]
        self.ask(requested(self.snapshot, ranges, EPOCH, again=True, whole=whole))

    @rule(one=shown)
    def they_are_asked_for_by_themselves(self, one: Shown) -> None:
        before = self.snapshot
        after = requested_unless_after(before, [ALL_KEYS], EPOCH, one.resync_request.run)
        asked_since = any(run > one.resync_request.run for run in self.asked_at)
        assert (after is None) is asked_since, "once, and not where somebody has given up what would heal"
        self.ask(after)

    def ask(self, after: Snapshot | None) -> None:
        self.moment += 1
        if after is not None:
            if after.whole and (self.snapshot is None or after.run > self.snapshot.run):
                self.asked_at[after.run] = self.moment
            self.snapshot = after

    @rule()
    def it_is_given_up(self) -> None:
        self.snapshot = cancelled(self.snapshot) or self.snapshot

    @rule(target=complete)
    def it_is_read(self) -> object:
        self.read()
        if self.snapshot is not None and self.snapshot.complete_since is not None:
            self.completed.add(self.snapshot.run)
            return self.snapshot.run
        return multiple()

    def read(self) -> None:
        if self.snapshot is None or not self.snapshot.unfinished:
            return
        numbers = [part.number for part in self.snapshot.unfinished]
        owned = claimed(self.snapshot, numbers, len(numbers), "reader", lambda _part: True)
        assert owned is not None
        progress = [PartProgress(part, owned.run, b"x", EPOCH, 1, done=True) for part in owned.unfinished]
        self.snapshot = advanced(owned, progress, release=False)

    @rule(run=complete)
    def its_end_is_announced(self, run: int) -> None:
        self.keep(core.healed(self.kept, run, WATCHING.digest))
        if self.snapshot is not None and self.snapshot.run == run:
            self.snapshot = replace(self.snapshot, announced=True)

    @rule(target=shown)
    def the_request_is_shown(self) -> object:
        self.moment += 1
        resync_request = resync_request_of("weather", self.kept)
        return multiple() if resync_request is None else Shown(self.moment, resync_request)

    @rule(one=shown)
    def it_is_removed_by_hand(self, one: Shown) -> None:
        self.keep(core.synced(self.kept, one.resync_request))
        self.removed.append(one)

    @invariant()
    def what_is_not_fixed_is_kept(self) -> None:
        kept = {finding.kind for finding in self.kept.findings} if self.kept is not None else set()
        for one, stored_at in self.stored:
            fixed = any(self.asked_at[run] > one.at for run in self.completed)
            by_hand = any(shown.at > stored_at for shown in self.removed)
            assert one.kind in kept or fixed or by_hand, one

    def teardown(self) -> None:
        """All rows once more, to the end, fix whatever there is."""
        self.ask(requested(self.snapshot, [ALL_KEYS], EPOCH, again=True, whole=True))
        self.read()
        assert self.snapshot is not None
        assert self.snapshot.complete_since is not None
        self.keep(core.healed(self.kept, self.snapshot.run, WATCHING.digest))
        assert resync_request_of("weather", self.kept) is None


TestResyncMachine = ResyncMachine.TestCase
TestResyncMachine.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)


def test_the_fix_is_commands_to_copy_and_names_delete_missing_rows() -> None:
    kept = core.with_finding(None, BigtableResyncKind.FAMILIES_DROPPED, EPOCH, 0)
    resync_request = resync_request_of("projects/p/instances/i/tables/weather", kept)
    assert resync_request is not None
    text = fix_of(resync_request)
    assert text.startswith("`python -m services.bigtable_reader snapshot` brings all rows as they are now")
    assert (
        "`python -m services.cdc_consumer delete-missing-rows weather --source 'python -m services.bigtable_reader "
        "rows' " in text
    )
    assert text.endswith("`python -m services.bigtable_reader synced`")


def test_of_a_newer_version_a_kind_is_shown_as_it_is() -> None:
    kept = Resync(findings=(core.BigtableResyncCause(kind="rows_moved", found_at=EPOCH, run=2),))
    assert core.healed(kept, 2, WATCHING.digest) is None
    healed = core.healed(kept, 3, WATCHING.digest)
    assert healed is not None
    assert resync_request_of("weather", healed) is None


def test_what_was_found_after_a_request_was_read_stays_when_that_request_is_taken_away_by_hand() -> None:
    kept = core.with_finding(None, BigtableResyncKind.ROUTED_ELSEWHERE, EPOCH, 1)
    request = resync_request_of("weather", kept)
    assert request is not None

    left = core.synced(core.with_finding(kept, BigtableResyncKind.STREAM_DISABLED, EPOCH, 1), request)

    assert left is not None
    assert [finding.kind for finding in left.findings] == [BigtableResyncKind.STREAM_DISABLED]
    again = core.with_finding(kept, BigtableResyncKind.ROUTED_ELSEWHERE, EPOCH, 1)
    assert core.synced(again, request) is None, "the same, found once more"


def test_families_that_are_dropped_one_after_the_other_are_one_finding_until_all_rows_came_after_the_last() -> None:
    names = [f"f{number}" for number in range(4)]
    kept: Resync | None = None
    for dropped in range(1, 4):
        later = Microseconds(EPOCH + dropped)
        kept = core.compared(kept, names, names[dropped:], lambda _family: True, later, 3 + dropped, WATCHING)
    assert kept is not None
    (found,) = kept.findings
    assert (found.families, found.run, found.times, found.found_at) == (("f0", "f1", "f2"), 6, 3, EPOCH + 1)
    assert core.healed(kept, 6, WATCHING.digest) is None
    assert core.healed(kept, 7, WATCHING.digest) == replace(kept, findings=())
