"""A dead letter as it is kept: its state, how often it failed, what was done about it and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

LetterId = NewType("LetterId", str)
"""The identity that the contracts give a letter: the same however often the same record fails."""
GroupId = NewType("GroupId", str)
"""The fingerprint of letters that fail for one cause: reason, table and normalised detail."""
ReplayId = NewType("ReplayId", str)
"""One run of the replay command, however often it is interrupted."""


class State(Enum):
    """What has become of a letter."""

    OPEN = "open"
    """Nothing yet, or it failed again."""
    REPLAYED = "replayed"
    """Published again, and has not come back."""
    SUPERSEDED = "superseded"
    """Not needed any more: the mirror holds something newer, or an edited copy takes its place."""
    DISCARDED = "discarded"
    """Somebody decided that it is not to be applied."""


class Action(Enum):
    """What is done to a letter; a line of its trail each."""

    ARRIVED = "arrived"
    FAILED_AGAIN = "failed_again"
    VALUES_SHOWN = "values_shown"
    EXPORTED = "exported"
    REPLAYED = "replayed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"
    RESTORED = "restored"
    EDITED = "edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A letter as it came from the dead-letter subscription.

    ``message_id`` is Pub/Sub's: the same message delivered again is no further attempt, the same letter published
    again is one.
    """

    letter: DeadLetter
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A letter as the store holds it; ``letter`` is as it came last: the newest detail of the same bytes."""

    letter: DeadLetter
    state: State
    group: GroupId
    attempts: int
    """How often it has failed: messages that carried it."""
    replays: int
    """How often it was published again."""
    first_failed_at: Nanoseconds
    last_failed_at: Nanoseconds
    arrived_at: Nanoseconds
    edit_of: LetterId | None = None
    """The letter that this one is an edited copy of."""
    edited_as: LetterId | None = None
    """The copy that takes this one's place."""
    claimed_by: ReplayId | None = None
    """The replay that holds it just now: no other may send it."""

    @property
    def id(self) -> LetterId:
        """Return its identity."""
        return LetterId(self.letter.identity)

    @property
    def without_payload(self) -> bool:
        """Tell whether its bytes could not be kept, so that it cannot be replayed."""
        return self.letter.payload_bytes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailEntry:
    """Who did what to a letter, when, and what came of it. Never a value of a row, but in the diff of an edit."""

    letter: LetterId
    at: Nanoseconds
    who: str
    action: Action
    result: str
    more: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Letters that fail for one cause."""

    id: GroupId
    reason: Reason
    table: str
    detail: str
    """Normalised: what differs from letter to letter is taken out."""
    letters: int
    by_state: Mapping[State, int]
    first_failed_at: Nanoseconds
    last_failed_at: Nanoseconds
    sample: LetterId
    """Its newest letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What the store holds, in numbers."""

    by_state: Mapping[State, int]
    by_reason: Mapping[Reason, int]
    """Open letters only."""
    by_table: Mapping[str, int]
    """Open letters only."""
    oldest_open: Nanoseconds | None
    payload_bytes: int
