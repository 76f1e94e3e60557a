"""A store in memory, with the promises of `DeadLetterStore`, as `tests/contract/test_dead_letter_store.py` shows."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy as shallow
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from itertools import count
from threading import RLock
from typing import Any, Final

from services.dead_letter.core.dead_letters import (
    COLLECTOR,
    OF_MESSAGE,
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
from services.dead_letter.core.groups import group_of, normalised
from services.dead_letter.core.pipeline import Pipeline, joined, refuse_while_replayed
from services.dead_letter.core.selection import Selection, sequence_order
from services.dead_letter.ports import TRAIL_SHOWN, DeadLetterPage, Kept
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.timestamps import Nanoseconds

_ACTIONS: Final = {State.OPEN: Action.RESTORED, State.SUPERSEDED: Action.SUPERSEDED, State.DISCARDED: Action.DISCARDED}

_REPEATED: Final = (Action.FAILED_AGAIN, Action.VALUES_SHOWN, Action.EXPORTED)


@dataclass
class _Row:
    """A dead letter, and what the store knows beside it."""

    number: int
    stored: StoredDeadLetter
    last_action_at: Nanoseconds
    messages: set[str] = field(default_factory=set)
    lost_by: ReplayId | None = None
    replay_of: str | None = None
    trail: list[TrailEntry] = field(default_factory=list)

    def write(self, action: Action, who: str, now: Nanoseconds, result: str, more: Mapping[str, str]) -> None:
        """Write a line of the trail."""
        self.last_action_at = now
        self.trail.append(
            TrailEntry(dead_letter=self.stored.id, at=now, who=who, action=action, result=result, more=dict(more))
        )

    def is_claimed(self, now: Nanoseconds) -> bool:
        """Return whether a replay holds it."""
        until = self.stored.claimed_until
        return self.stored.claimed_by is not None and until is not None and until > now

    def let_go(self) -> None:
        """End whatever claim there is."""
        self.lost_by = None
        self.stored = replace(self.stored, claimed_by=None, claimed_until=None)


class FakeDeadLetterStore:
    """Dead letters in a dictionary."""

    def __init__(self) -> None:
        self._dead_letters: dict[DeadLetterId, _Row] = {}
        self._numbers = count(1)
        self._lock = RLock()
        self._pipeline = Pipeline()
        self.dead: set[ReplayId] = set()
        """Replays whose process has ended, as a test says."""

    def pipeline(self) -> Pipeline:
        """Return of which pipeline the dead letters are."""
        return self._pipeline

    def join(self, mine: Pipeline) -> Pipeline:
        """Remember of which pipeline the dead letters are, where that is not known."""
        with self._lock:
            self._pipeline = joined(self._pipeline, mine)
        return self._pipeline

    def change_pipeline(self, new: Pipeline, now: Nanoseconds) -> Pipeline:
        """Remember another subscription or topic from now on."""
        with self._lock:
            if new.topic not in (None, self._pipeline.topic):
                refuse_while_replayed(sum(one.is_claimed(now) for one in self._dead_letters.values()))
            self._pipeline = self._pipeline.with_new(new)
            return self._pipeline

    def keep(self, arrivals: Sequence[Arrival], now: Nanoseconds) -> Kept:
        """Remember dead letters."""
        new = again = seen = 0
        with self._lock:
            unknown = {DeadLetterId(arrival.dead_letter.identity) for arrival in arrivals} - self._dead_letters.keys()
            numbers = {identity: next(self._numbers) for identity in sorted(unknown)}  # as the database adds them
            for arrival in arrivals:
                dead_letter = arrival.dead_letter
                identity = DeadLetterId(dead_letter.identity)
                row = self._dead_letters.get(identity)
                more = {"message_id": arrival.message_id, "reason": dead_letter.reason.value}
                if row is None:
                    row = self._dead_letters[identity] = self._new(numbers[identity], dead_letter, now)
                    new += 1
                    row.write(Action.ARRIVED, COLLECTOR, now, State.OPEN.value, more)
                elif arrival.message_id in row.messages:
                    seen += 1
                    continue
                else:
                    again += 1
                    self._fail_again(row, dead_letter)
                    row.write(Action.FAILED_AGAIN, COLLECTOR, now, row.stored.state.value, more)
                row.messages.add(arrival.message_id)
                row.stored = replace(row.stored, attempts=row.stored.attempts + 1)
        return Kept(new=new, again=again, seen=seen)

    def _new(self, number: int, new: DeadLetter, now: Nanoseconds, edit_of: DeadLetterId | None = None) -> _Row:
        failed_at = _within_64_bits(new.failed_at)
        stored = stored_of(
            new,
            state=State.OPEN,
            group=group_of(new.reason, new.table, new.detail),
            attempts=0,
            replays=0,
            first_failed_at=failed_at,
            last_failed_at=failed_at,
            arrived_at=now,
            edit_of=edit_of,
        )
        return _Row(number, stored, now, replay_of=new.attributes.get(REPLAY_OF))

    def _fail_again(self, row: _Row, dead_letter: DeadLetter) -> None:
        stored = row.stored
        failed_at = _within_64_bits(dead_letter.failed_at)
        if failed_at >= stored.last_failed_at:
            row.replay_of = dead_letter.attributes.get(REPLAY_OF)
            stored = replace(
                stored,
                reason=dead_letter.reason,
                detail=dead_letter.detail,
                failed_in=dead_letter.failed_in,
                group=group_of(dead_letter.reason, stored.table, dead_letter.detail),
                last_failed_at=failed_at,
            )
        lost_by = stored.claimed_by or row.lost_by
        row.stored = replace(
            stored,
            first_failed_at=min(stored.first_failed_at, failed_at),
            state=State.DISCARDED if stored.state is State.DISCARDED else State.OPEN,
        )
        row.let_go()
        row.lost_by = lost_by

    def get(self, dead_letter: DeadLetterId) -> StoredDeadLetter | None:
        """Return a dead letter by its id, or by how only its id begins."""
        with self._lock:
            if dead_letter in self._dead_letters:
                return self._dead_letters[dead_letter].stored
            found = [one for one in self._dead_letters if one.startswith(dead_letter)]
            return self._dead_letters[found[0]].stored if len(found) == 1 and len(dead_letter) >= 8 else None

    def find(self, selection: Selection, *, limit: int, after: str | None = None) -> DeadLetterPage:
        """Return a page of dead letters."""
        if limit < 1:
            raise ValueError("a page has one dead letter or more")
        if after is not None and re.fullmatch(r"-?[0-9]{1,19}\.[0-9]{1,19}", after, re.ASCII) is None:
            raise ValueError(f"not what a page ended with: {after!r}")
        place = None if after is None else tuple(int(part) for part in after.split("."))
        with self._lock:
            found = sorted(
                ((row.stored.last_failed_at, row.number, line_of(row.stored)) for row in self._chosen(selection)),
                key=lambda each: each[:2],
                reverse=True,
            )
        behind = [each for each in found if place is None or each[:2] < place]
        more = f"{behind[limit - 1][0]}.{behind[limit - 1][1]}" if len(behind) > limit else None
        return DeadLetterPage([line for _, _, line in behind[:limit]], more)

    def in_replay_order(self, selection: Selection) -> Iterator[StoredDeadLetter]:
        """Return dead letters by table, key, sequence, as each is when its turn comes."""
        with self._lock:
            chosen = [shallow(row) for row in self._chosen(selection)]
        chosen.sort(key=_replay_order)
        for row in chosen:
            with self._lock:
                now = self._dead_letters.get(row.stored.id)
                stored = now.stored if now is not None and matches(selection, now.stored) else None
            if stored is not None:
                yield stored

    def count(self, selection: Selection) -> int:
        """Return how many dead letters a selection holds."""
        with self._lock:
            return len(self._chosen(selection))

    def groups(self, selection: Selection, *, limit: int) -> Sequence[DeadLetterGroup]:
        """Return groups, the largest first."""
        members: dict[GroupId, list[_Row]] = {}
        with self._lock:
            for row in self._chosen(selection):
                members.setdefault(row.stored.group, []).append(row)
            found = [_group(identity, some) for identity, some in members.items()]
        return sorted(found, key=lambda group: (-group.dead_letters, -group.last_failed_at, group.id))[:limit]

    def failures(self, selection: Selection, spans: TimeSpans) -> Mapping[GroupId, Sequence[int]]:
        """Return of each group when its dead letters failed last."""
        found: dict[GroupId, list[int]] = {}
        with self._lock:
            for row in self._chosen(selection):
                span = (row.stored.last_failed_at - spans.since) // spans.length
                if 0 <= span < spans.count:
                    found.setdefault(row.stored.group, [0] * spans.count)[span] += 1
        return found

    def brought_back(self, ids: Collection[DeadLetterId], since: Nanoseconds) -> Collection[DeadLetterId]:
        """Return those whose replay has made dead letters."""
        with self._lock:
            back = {row.replay_of for row in self._dead_letters.values() if row.stored.last_failed_at >= since}
        return {*ids} & back

    def stats(self) -> DeadLetterStats:
        """Return what there is, in numbers."""
        with self._lock:
            dead_letters = [row.stored for row in self._dead_letters.values()]
        still_open = [one for one in dead_letters if one.state is State.OPEN]
        by_reason = Counter(one.reason for one in still_open)
        return DeadLetterStats(
            by_state=Counter(one.state for one in dead_letters),
            by_reason=by_reason,
            by_table=Counter(one.table for one in still_open),
            oldest_by_reason={
                reason: min(one.first_failed_at for one in still_open if one.reason is reason) for reason in by_reason
            },
            payload_bytes=sum(one.size for one in dead_letters),
        )

    def trail(self, dead_letter: DeadLetterId) -> Sequence[TrailEntry]:
        """Return what was done to a dead letter."""
        with self._lock:
            trail = self._dead_letters[dead_letter].trail if dead_letter in self._dead_letters else []
        repeated = [place for place, one in enumerate(trail) if one.action in _REPEATED]
        left_out = {*repeated[:-TRAIL_SHOWN]}
        return [one for place, one in enumerate(trail) if place not in left_out]

    def note(self, ids: Sequence[DeadLetterId], action: Action, who: str, now: Nanoseconds, result: str = "") -> None:
        """Write a line into the trail of dead letters."""
        with self._lock:
            for row in self._of(ids):
                row.write(action, who, now, result, {})

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
        """Discard dead letters, say they are superseded, or open them."""
        if state not in _ACTIONS:
            raise ValueError(f"only `sent` makes a dead letter {state.value}")
        with self._lock:
            chosen = [row for row in self._of(ids) if row.stored.state in only_from and not row.is_claimed(now)]
            for row in chosen:
                before = row.stored.state.value
                row.let_go()
                row.stored = replace(row.stored, state=state)
                row.write(_ACTIONS[state], who, now, why, {"before": before})
        return [row.stored.id for row in chosen]

    def claim(
        self, ids: Sequence[DeadLetterId], replay: ReplayId, now: Nanoseconds, lease: timedelta
    ) -> Sequence[DeadLetterId]:
        """Take dead letters for a replay."""
        until = Nanoseconds(now + lease // timedelta(microseconds=1) * 1000)
        with self._lock:
            chosen = [
                row
                for row in self._of(ids)
                if row.stored.state is State.OPEN and (row.stored.claimed_by == replay or not row.is_claimed(now))
            ]
            for row in chosen:
                row.lost_by = None
                row.stored = replace(row.stored, claimed_by=replay, claimed_until=until)
        return [row.stored.id for row in chosen]

    def sent(self, ids: Sequence[DeadLetterId], replay: ReplayId, who: str, now: Nanoseconds) -> Sequence[DeadLetterId]:
        """Say that dead letters of a claim are published."""
        done = []
        with self._lock:
            for row in self._of(ids):
                if row.stored.claimed_by == replay:
                    row.let_go()
                    row.stored = replace(row.stored, state=State.REPLAYED, replays=row.stored.replays + 1)
                    row.write(Action.REPLAYED, who, now, "confirmed by Pub/Sub", {"replay": replay})
                    done.append(row.stored.id)
                elif row.lost_by == replay:
                    row.lost_by = None
                    row.stored = replace(row.stored, replays=row.stored.replays + 1)
                    row.write(Action.REPLAYED, who, now, "failed again before this was written", {"replay": replay})
        return done

    def release(self, replay: ReplayId) -> None:
        """Let go of everything that a replay holds."""
        with self._lock:
            for row in self._dead_letters.values():
                if replay in (row.stored.claimed_by, row.lost_by):
                    row.let_go()

    def living(self, replay: ReplayId) -> AbstractContextManager[None]:
        """Let everyone see that a replay lives: it dies when a test says so."""
        del replay
        return nullcontext()

    def release_dead(self) -> Sequence[ReplayId]:
        """Let go of what dead replays hold."""
        with self._lock:
            claiming = {one.stored.claimed_by for one in self._dead_letters.values()}
        dead = sorted(self.dead & claiming)
        for one in dead:
            self.release(one)
        return dead

    def add_edit(
        self, original: DeadLetterId, copy: DeadLetter, *, diff: str, why: str, who: str, now: Nanoseconds
    ) -> StoredDeadLetter:
        """Keep an edited copy."""
        identity = DeadLetterId(copy.identity)
        with self._lock:
            row = self._dead_letters.get(original)
            if row is None:
                raise ValueError(f"there is no dead letter {original}")
            if row.stored.edited_as is not None:
                raise ValueError(f"dead letter {original} has an edited copy already: {row.stored.edited_as}")
            if row.stored.state is not State.OPEN:
                raise ValueError(f"dead letter {original} is {row.stored.state.value} by now: restore it first")
            if row.is_claimed(now):
                raise ValueError(f"dead letter {original} is claimed by the replay {row.stored.claimed_by} just now")
            if identity in self._dead_letters:
                raise ValueError(f"the edited copy is the same as dead letter {identity}")
            row.let_go()
            row.stored = replace(row.stored, state=State.SUPERSEDED, edited_as=identity)
            made = self._dead_letters[identity] = self._new(next(self._numbers), copy, now, edit_of=original)
            more = {"why": why, "diff": diff}
            row.write(Action.EDITED, who, now, "superseded by its copy", {"edited_as": identity} | more)
            made.write(Action.EDITED, who, now, "an edited copy", {"edit_of": original} | more)
            return made.stored

    def forget(self, *, before: Nanoseconds, limit: int) -> int:
        """Delete some dead letters, as the retention does."""
        with self._lock:
            old = [
                row
                for row in self._dead_letters.values()
                if row.stored.state is not State.OPEN
                and row.stored.last_failed_at < before
                and row.last_action_at < before
            ]
            old.sort(key=lambda row: (row.last_action_at, row.number))
            gone = [self._dead_letters.pop(row.stored.id) for row in old[:limit]]
            for edit in gone:
                if (row := self._dead_letters.get(edit.stored.edit_of or DeadLetterId(""))) is not None:
                    row.stored = replace(row.stored, edited_as=None)
        return len(gone)

    def _of(self, ids: Sequence[DeadLetterId]) -> list[_Row]:
        return [self._dead_letters[one] for one in dict.fromkeys(ids) if one in self._dead_letters]

    def _chosen(self, selection: Selection) -> list[_Row]:
        return [row for row in self._dead_letters.values() if matches(selection, row.stored)]


def stored_of(dead_letter: DeadLetter, **history: Any) -> StoredDeadLetter:
    """Return a dead letter as a store holds it."""
    shown = {name: getattr(dead_letter, name) for name in OF_MESSAGE}
    kept = {"size": len(dead_letter.data), "data": dead_letter.data, "attributes": dict(dead_letter.attributes)}
    return StoredDeadLetter(**shown | kept | {"id": DeadLetterId(dead_letter.identity)} | history)


def line_of(stored: StoredDeadLetter) -> DeadLetterLine:
    """Return what lists show of a dead letter."""
    return DeadLetterLine(**{one.name: getattr(stored, one.name) for one in fields(DeadLetterLine)})


def matches(selection: Selection, line: DeadLetterLine) -> bool:
    """Return whether a dead letter is of a selection."""
    sequence = sequence_order(line.sequence)
    by_sequence = selection.sequence_from is not None or selection.sequence_until is not None
    return (
        (not selection.ids or line.id in selection.ids)
        and (not selection.groups or line.group in selection.groups)
        and (not selection.tables or line.table in selection.tables)
        and (not selection.reasons or line.reason in selection.reasons)
        and (not selection.keys or line.key in selection.keys)
        and (not selection.states or line.state in selection.states)
        and (selection.failed_from is None or line.last_failed_at >= selection.failed_from)
        and (selection.failed_until is None or line.last_failed_at < selection.failed_until)
        and not (by_sequence and not sequence)
        and (selection.sequence_from is None or sequence >= selection.sequence_from)
        and (selection.sequence_until is None or sequence < selection.sequence_until)
    )


def _replay_order(row: _Row) -> tuple[str, str, str, int, int]:
    stored = row.stored
    return stored.table, stored.key, sequence_order(stored.sequence), stored.first_failed_at, row.number


def _group(identity: GroupId, members: Sequence[_Row]) -> DeadLetterGroup:
    newest = max(members, key=lambda row: (row.stored.last_failed_at, row.number)).stored
    return DeadLetterGroup(
        id=identity,
        reason=newest.reason,
        table=newest.table,
        detail=normalised(newest.detail),
        dead_letters=len(members),
        by_state=Counter(row.stored.state for row in members),
        first_failed_at=min(row.stored.first_failed_at for row in members),
        last_failed_at=newest.last_failed_at,
        sample=newest.id,
    )


def _within_64_bits(instant: Nanoseconds) -> Nanoseconds:
    return Nanoseconds(max(-(1 << 63), min(instant, (1 << 63) - 1)))
