"""A dead letter as it is kept: its state, how often it failed, what was done about it and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType

from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

DeadLetterId = NewType("DeadLetterId", str)
"""The identity that the contracts give a dead letter: the same however often the same record fails."""
GroupId = NewType("GroupId", str)
"""The fingerprint of dead letters that fail for one cause: reason, table and normalised detail."""
ReplayId = NewType("ReplayId", str)
"""One run of the replay command, however often it is interrupted."""

COLLECTOR: Final = "collector"
"""Who did it, in the trail, where no person did: dead letters arrive."""


class State(Enum):
    """What has become of a dead letter."""

    OPEN = "open"
    """Nothing yet, or it failed again."""
    REPLAYED = "replayed"
    """Published again, and has not come back."""
    SUPERSEDED = "superseded"
    """No longer needed: the mirror holds something newer, or an edited copy takes its place."""
    DISCARDED = "discarded"
    """A person decided that it is not to be applied."""


class Action(Enum):
    """What is done to a dead letter; a line of its trail each."""

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
    """A dead letter as it came from the dead-letter subscription.

    ``message_id`` is Pub/Sub's: the same message delivered again is no further attempt, the same dead letter published
    again is one.
    """

    dead_letter: DeadLetter
    message_id: str


OF_MESSAGE: Final = (
    *("reason", "detail", "table", "key", "sequence", "commit_timestamp", "ordering_key", "failed_in"),
    "payload_bytes",
)
"""The fields of a `DeadLetter` that lists show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterLine:
    """A dead letter as lists show it: all but its bytes and attributes, which may be megabytes.

    What a field means that is not documented here is documented at `DeadLetter`.
    """

    id: DeadLetterId
    state: State
    group: GroupId
    reason: Reason
    detail: str
    table: str
    key: str
    sequence: str
    commit_timestamp: str
    ordering_key: str
    failed_in: str
    size: int
    """Bytes that are kept."""
    payload_bytes: int | None
    """Bytes that could not be kept, if any: such a dead letter cannot be replayed."""
    attempts: int
    """How often it has failed: messages that carried it."""
    replays: int
    """How often it was published again."""
    first_failed_at: Nanoseconds
    last_failed_at: Nanoseconds
    arrived_at: Nanoseconds
    edit_of: DeadLetterId | None = None
    """The dead letter that this one is an edited copy of."""
    edited_as: DeadLetterId | None = None
    """The copy that takes this one's place."""
    claimed_by: ReplayId | None = None
    """The replay that holds it, until ``claimed_until``: no other may send it."""
    claimed_until: Nanoseconds | None = None

    @property
    def without_payload(self) -> bool:
        """Return whether its bytes could not be kept, so that it cannot be replayed."""
        return self.payload_bytes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeadLetter(DeadLetterLine):
    """A dead letter as the store holds it, whole."""

    attributes: Mapping[str, str]
    data: bytes

    @property
    def dead_letter(self) -> DeadLetter:
        """Return it as it came last: the newest detail of the same bytes."""
        of_message = {name: getattr(self, name) for name in OF_MESSAGE}
        return DeadLetter(
            data=self.data, attributes=self.attributes, failed_at=self.last_failed_at, identity=self.id, **of_message
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailEntry:
    """Who did what to a dead letter, when, and what came of it. Never a value of a row, but in the diff of an edit."""

    dead_letter: DeadLetterId
    at: Nanoseconds
    who: str
    action: Action
    result: str
    more: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters that fail for one cause."""

    id: GroupId
    reason: Reason
    table: str
    detail: str
    """Normalised: what differs from dead letter to dead letter is taken out."""
    dead_letters: int
    by_state: Mapping[State, int]
    first_failed_at: Nanoseconds
    last_failed_at: Nanoseconds
    sample: DeadLetterId
    """Its newest dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpans:
    """Spans of time of one length, one behind the other."""

    since: Nanoseconds
    length: int
    """Of each, in nanoseconds."""
    count: int

    @property
    def until(self) -> Nanoseconds:
        """Return when the last one ends."""
        return Nanoseconds(self.since + self.length * self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterStats:
    """What the store holds, in numbers."""

    by_state: Mapping[State, int]
    by_reason: Mapping[Reason, int]
    """Open dead letters only."""
    by_table: Mapping[str, int]
    """Open dead letters only."""
    oldest_by_reason: Mapping[Reason, Nanoseconds]
    """When the oldest open dead letter failed first."""
    payload_bytes: int

    @property
    def oldest_open(self) -> Nanoseconds | None:
        """Return when the oldest of all open dead letters failed first."""
        return min(self.oldest_by_reason.values(), default=None)
