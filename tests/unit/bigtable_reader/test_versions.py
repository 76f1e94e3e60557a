import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.versions import VersionAllocator
from tests.seeds import examples

NOON = 1_700_000_000_000_000
SECOND = 1_000_000


def us(time: int) -> Microseconds:
    return Microseconds(time)


def test_a_version_is_the_time_where_that_rises_and_one_more_than_the_last_where_not() -> None:
    versions = VersionAllocator(NOON, NOON + 100)
    made = [versions.next(us(now)) for now in (NOON + 10, NOON + 10, NOON - 50 * SECOND, NOON + 11, NOON + 20)]
    assert made == [NOON + 10, NOON + 11, NOON + 12, NOON + 13, NOON + 20]


def test_before_a_reserved_limit_is_saved_no_version_is_made() -> None:
    versions = VersionAllocator(NOON, NOON)
    assert versions.next(us(NOON + SECOND)) is None
    assert versions.last == NOON
    versions.raised(NOON + 2)
    assert [versions.next(us(NOON)) for _ in range(3)] == [NOON + 1, NOON + 2, None]


def test_a_clock_that_has_run_past_the_reserved_limit_stops_nothing() -> None:
    versions = VersionAllocator(NOON, NOON + 3)
    assert [versions.next(us(NOON + SECOND)) for _ in range(4)] == [NOON + 1, NOON + 2, NOON + 3, None]


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 30), st.integers(0, 20))
def test_many_versions_are_those_that_are_made_one_by_one(min_version: int, room: int, now: int, most: int) -> None:
    many, one_by_one = (VersionAllocator(min_version, min_version + room) for _ in range(2))
    made = [one_by_one.next(us(now)) for _ in range(most)]
    assert list(many.take(most, us(now))) == [version for version in made if version is not None]
    assert many.last == one_by_one.last


def test_a_reserved_limit_does_not_fall() -> None:
    versions = VersionAllocator(NOON, NOON + 3)
    versions.raised(NOON + 1)
    assert versions.reserved_up_to == NOON + 3


@pytest.mark.parametrize(("now", "wanted"), [(NOON - SECOND, NOON + 20), (NOON + SECOND, NOON + SECOND + 20)])
def test_what_is_asked_for_is_ahead_of_the_clock_and_of_the_last_version(now: int, wanted: int) -> None:
    assert VersionAllocator(NOON, NOON).wanted(us(now), 20) == wanted


@given(
    min_version=st.integers(0, 2 * NOON),
    steps=st.lists(st.tuples(st.integers(0, 2 * NOON), st.none() | st.integers(0, 2 * NOON)), max_size=50),
)
def test_versions_rise_and_stay_between_min_version_and_reserved_limit_whatever_the_clock_does(
    min_version: int, steps: list[tuple[int, int | None]]
) -> None:
    versions = VersionAllocator(min_version, min_version)
    last = min_version
    for now, reserved_up_to in steps:
        if reserved_up_to is not None:
            versions.raised(reserved_up_to)
        room = last < versions.reserved_up_to
        version = versions.next(us(now))
        assert (version is not None) == room
        if version is not None:
            assert last < version <= versions.reserved_up_to
            last = version


@dataclass
class Owner:
    """An owner, with a clock of its own, and what it has published for the row that is followed."""

    number: int
    fence: int
    clock: int
    versions: VersionAllocator


class OwnersComeAndGo(RuleBasedStateMachine):
    """One key range, its saved reserved upper limit, and former owners who do not know that they own it no longer.

    A claim raises the fence. A reserved upper limit is saved on the newest fence only. An owner or former owner with
    room below its limit may make and publish a version at any later time. Now and then the key range is closed, and
    its child begins at the limit; or it is released, and the limit falls to the last version that was made.
    """

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.fence = 0
        self.reserved_up_to = NOON
        self.count = 0
        self.allocated: list[tuple[int, int]] = []

    @rule(target=owners, skew=st.integers(-3600, 3600))
    def claim(self, skew: int) -> Owner:
        """A new owner: of the key range, or of the child of one that was closed, with a new row that begins alike."""
        self.fence += 1
        self.count += 1
        return Owner(
            self.count, self.fence, NOON + skew * SECOND, VersionAllocator(self.reserved_up_to, self.reserved_up_to)
        )

    @rule(owner=owners, jump=st.integers(-100, 100), ahead=st.integers(1, 30), reply_lost=st.booleans())
    def renew(self, owner: Owner, jump: int, ahead: int, reply_lost: bool) -> None:
        owner.clock += jump * SECOND
        asked = owner.versions.wanted(us(owner.clock), ahead * SECOND)
        if owner.fence == self.fence:
            self.reserved_up_to = max(self.reserved_up_to, asked)
            if not reply_lost:
                owner.versions.raised(asked)

    @rule(owner=owners, jump=st.integers(-10_000_000, 10_000_000), times=st.integers(1, 3))
    def allocate(self, owner: Owner, jump: int, times: int) -> None:
        owner.clock += jump
        for _time in range(times):
            version = owner.versions.next(us(owner.clock))
            if version is not None:
                self.allocated.append((owner.number, version))

    @rule(owner=consumes(owners))
    def gives_back(self, owner: Owner) -> None:
        """It makes no more versions, and what was reserved is free; a former owner changes nothing."""
        if owner.fence == self.fence:
            self.reserved_up_to = owner.versions.last

    @rule(owner=consumes(owners))
    def dies(self, owner: Owner) -> None:
        """It publishes nothing more."""

    @rule(target=owners, owner=owners)
    def keeps_on(self, owner: Owner) -> object:
        return multiple() if owner.fence == self.fence else multiple(owner)  # zombies are asked more often

    @invariant()
    def a_later_owner_makes_versions_above_all_that_an_earlier_one_did_or_ever_will(self) -> None:
        highest: dict[int, int] = {}
        lowest: dict[int, int] = {}
        for number, version in self.allocated:
            highest[number] = max(version, highest.get(number, version))
            lowest[number] = min(version, lowest.get(number, version))
        numbers = sorted(highest)
        for earlier, later in itertools.pairwise(numbers):
            assert highest[earlier] < lowest[later]


TestOwnersComeAndGo = OwnersComeAndGo.TestCase
TestOwnersComeAndGo.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
