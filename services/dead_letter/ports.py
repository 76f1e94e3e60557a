"""What this service needs from outside, as small protocols."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from services.dead_letter.core.dead_letters import (
    Action,
    Arrival,
    DeadLetterGroup,
    DeadLetterId,
    DeadLetterLine,
    DeadLetterStats,
    GroupId,
    ReplayId,
    State,
    StoredDeadLetter,
    TimeSpans,
    TrailEntry,
)
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.core.received import Received
from services.dead_letter.core.rows import RowOf
from services.dead_letter.core.selection import Selection
from services.dead_letter.core.statuses import Silence, StatusAnswer
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds

TRAIL_SHOWN: Final = 200
"""Lines of a trail that are read of either kind: a message that is repeated may have a million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The counts of arrivals: new dead letters, known ones that failed again, deliveries seen before."""

    new: int
    again: int
    seen: int


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some of the dead letters asked for; ``after`` is what to ask for the next ones with, None at the end."""

    dead_letters: Sequence[DeadLetterLine]
    after: str | None


class DeadLetterStore(Protocol):
    """The dead letters, their trail, and who is replaying which. Safe for several threads and processes.

    Each method is one transaction: it happens whole, or not at all. TransientError while the database is unavailable
    or busy; MisconfiguredError where it is of another version, or another program's.
    """

    def pipeline(self) -> Pipeline:
        """Return of which pipeline the dead letters are, as far as that is known."""

    def join(self, mine: Pipeline) -> Pipeline:
        """Remember of which pipeline the dead letters are, where that is not known yet; return what is known then.

        The first that comes is the one. MisconfiguredError that names both where mine is another, and nothing is
        remembered of it.
        """

    def change_pipeline(self, new: Pipeline, now: Nanoseconds) -> Pipeline:
        """Remember another subscription or topic from now on, what ``new`` has of them; return what is known then.

        MisconfiguredError for another topic while a replay has claims: it would go on with the former one.
        """

    def keep(self, arrivals: Sequence[Arrival], now: Nanoseconds) -> Kept:
        """Remember dead letters; return when they are durable.

        A message id that brought the same dead letter before changes nothing. A dead letter known by its identity gets
        one more attempt, the newest reason and detail, and is open again (with a line in its trail) whatever it was but
        discarded; a replay that is sending it loses it, so that a failure that is faster than the replay's
        book-keeping is not lost. Bytes, attributes and ordering key stay those of its first arrival.
        """

    def get(self, dead_letter: DeadLetterId) -> StoredDeadLetter | None:
        """Return a dead letter by its id, or by its first characters, at least eight, if no other begins so."""

    def find(self, selection: Selection, *, limit: int, after: str | None = None) -> DeadLetterPage:
        """Return dead letters without their bytes, those that failed last first; ``after`` goes on behind a page.

        New dead letters meanwhile neither repeat nor hide what was there; one that fails again is at the front from
        then on. ValueError if ``after`` is of no page, or ``limit`` below one.
        """

    def in_replay_order(self, selection: Selection) -> Iterator[StoredDeadLetter]:
        """Return every dead letter of a selection, with its bytes, by table, key, then sequence; without one, by time.

        Memory stays bounded however many there are, and no transaction stays open while they are worked on; each is as
        it is when it is returned, and left out where it is no longer of the selection.
        """

    def count(self, selection: Selection) -> int:
        """Return how many dead letters a selection holds."""

    def groups(self, selection: Selection, *, limit: int) -> Sequence[DeadLetterGroup]:
        """Return the groups of a selection's dead letters, the largest first."""

    def failures(self, selection: Selection, spans: TimeSpans) -> Mapping[GroupId, Sequence[int]]:
        """Return of each group how many of a selection's dead letters failed last in each of the spans.

        Groups without any in the spans are left out.
        """

    def brought_back(self, ids: Collection[DeadLetterId], since: Nanoseconds) -> Collection[DeadLetterId]:
        """Return those whose replay has made a dead letter since a time.

        The replay of a whole message makes other ones: one for each change that fails.
        """

    def stats(self) -> DeadLetterStats:
        """Return what there is, in numbers."""

    def trail(self, dead_letter: DeadLetterId) -> Sequence[TrailEntry]:
        """Return what was done to a dead letter, first things first.

        Of lines that come without end (failed again, values shown, exported) the newest `TRAIL_SHOWN`, and as many
        others.
        """

    def note(self, ids: Sequence[DeadLetterId], action: Action, who: str, now: Nanoseconds, result: str = "") -> None:
        """Write into the trail what changed nothing: values were shown, a dead letter was exported."""

    def set_state(
        self,
        ids: Sequence[DeadLetterId],
        state: State,
        *,
        only_from: frozenset[State],
        who: str,
        now: Nanoseconds,
        why: str,
    ) -> Sequence[DeadLetterId]:
        """Discard dead letters, say they are superseded, or open them; return those that were in ``only_from``.

        One that a replay holds just now is left as it is, and not returned.
        """

    def claim(
        self, ids: Sequence[DeadLetterId], replay: ReplayId, now: Nanoseconds, lease: timedelta
    ) -> Sequence[DeadLetterId]:
        """Take dead letters for a replay; return those got: not those another replay holds, nor any but open ones.

        A claim ends by itself after ``lease``, so that a replay that was killed holds nothing for ever. One's own is
        renewed.
        """

    def sent(self, ids: Sequence[DeadLetterId], replay: ReplayId, who: str, now: Nanoseconds) -> Sequence[DeadLetterId]:
        """Record that Pub/Sub has confirmed dead letters of a claim: they are replayed; return those that were.

        One that has failed again since it was claimed stays open, and so does one whose claim another replay has taken;
        the first is counted as replayed all the same, so that one that fails at once does not look as if never tried.
        """

    def release(self, replay: ReplayId) -> None:
        """Let go of everything that a replay holds."""

    def living(self, replay: ReplayId) -> AbstractContextManager[None]:
        """Let everyone see that a replay lives while the block runs, however it ends."""

    def release_dead(self) -> Sequence[ReplayId]:
        """Let go of what replays hold that have died; return which these are.

        Only of those that have died for certain: where that is not known, their claims end with their lease.
        """

    def add_edit(
        self, original: DeadLetterId, copy: DeadLetter, *, diff: str, why: str, who: str, now: Nanoseconds
    ) -> StoredDeadLetter:
        """Keep an edited copy, linked to its original, which it supersedes; the copy is open and has not failed yet.

        ValueError where the original has a copy already, is not there, is not open by now, or is claimed by a replay.
        """

    def forget(self, *, before: Nanoseconds, limit: int) -> int:
        """Delete some dead letters that are not open, whose last failure and last action are older; return how many."""


class Inbox(Protocol):
    """The dead-letter subscription. TransientError while Pub/Sub is unavailable."""

    def pull(self, wait: timedelta) -> Sequence[Received]:
        """Lease some messages, bounded in number and bytes; empty if none came in time."""

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Say that these are kept. What is not acked comes again."""


class ReplayPublisher(Protocol):
    """The topic of change batches, for what is published again."""

    @property
    def topic(self) -> str:
        """Return its full name, as `core.pipeline.named` gives it."""

    def publish(self, dead_letters: Sequence[DeadLetter], forced: Collection[DeadLetterId]) -> None:
        """Publish dead letters in this order, each with its own bytes, attributes and ordering key, plus ``replay_of``.

        Those that are ``forced`` say so to the consumer, which takes them however old they are.

        Return when Pub/Sub has confirmed all. TransientError if it did not confirm: some may have gone out, and to
        send them again is harmless.
        """


class Mirrors(Protocol):
    """What BigQuery holds of the rows that dead letters are of."""

    def sequences(self, rows: Sequence[RowOf]) -> Mapping[RowOf, str]:
        """Return the sequence that is applied to each row.

        Left out are rows that are not there, those of source tables without a mirror, and those of which a history is
        kept as well, since what is old for the mirror is missing in that. TransientError while BigQuery is unavailable.
        """


class IdentityProxy(Protocol):
    """A proxy that lets people in, and says of each request who makes it."""

    def who(self, assertion: str) -> str:
        """Return whom a signed assertion names; ValueError where it is not the proxy's, not for us, or too old.

        TransientError while the proxy's public keys cannot be had.
        """


ANSWERS_WITHIN: Final = timedelta(seconds=2)
"""A service that takes longer to answer for its status does not answer."""


class SilentError(TransientError):
    """A service has not answered with its status."""

    def __init__(self, silence: Silence, why: str) -> None:
        super().__init__(why)
        self.silence = silence


class StatusPages(Protocol):
    """What the other services answer at their health ports."""

    def ask(self, address: str) -> StatusAnswer:
        """Return what a service answers within ANSWERS_WITHIN; SilentError with the reason where it does not."""
