"""How long an ordering key rests after a request: alone for a moment, or together with others whose changes are late.

Decision 0037 says what it is good for. All methods are called in one event loop.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Final

from shared.contracts.change_batch import Change
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.pubsub.packer import Message
from shared.runtime.clock import Clock

REST: Final = timedelta(milliseconds=50)
"""How long a key rests alone, unless a message is full: so much later, at most, is what follows closely.

A message costs both of its ends more than the changes in it do, and Pub/Sub counts each as a kilobyte at least.
"""
_LATE: Final = 1.0  # seconds
"""Keys whose last published change is older than this rest together, for a quarter of that age, two seconds at most.

Requests at the same time cost a third of the CPU less, and have more changes each.
"""
_AGE_FOR_REST: Final = 4
_LONGEST_REST: Final = 2.0  # seconds
_NOTHING_COMES: Final = 0.3
"""Seconds without a change after which keys that rest together rest no longer: who publishes may wait for them."""
_SECOND: Final = 1_000_000_000  # in nanoseconds


class KeyRests:
    """Says when keys have rested. A key that publishes what is not late rests alone, whatever others do."""

    def __init__(
        self, rest: timedelta, clock: Clock, is_half_full: Callable[[], bool], ended: Callable[[Collection[str]], None]
    ) -> None:
        """``rest``: of a key alone; zero is none at all. ``ended`` is called with the keys that have rested.

        ``is_half_full``: whether others may soon have to wait for room, which what rests takes up.
        """
        self._rest = rest.total_seconds()
        self._clock = clock
        self._is_half_full = is_half_full
        self._ended = ended
        self._together: set[str] = set()
        self._together_until = 0.0
        """By the event loop's clock."""
        self._alone_until = 0.0
        """By the event loop's clock: until then none begin to rest together."""
        self._is_timed = False
        """Whether a timer is set that looks whether those that rest together may end."""
        self._has_come = False
        """Whether changes have come since it looked last."""

    def begin(self, of_keys: Mapping[str, Sequence[Message]]) -> None:
        """Let the keys of a request rest, whose messages these are."""
        if not self._rest:
            return
        now = asyncio.get_running_loop().time()
        may_be_together = now >= self._alone_until and not self._is_half_full()
        alone: set[str] = set()
        for key, messages in of_keys.items():
            changes = messages[-1].changes
            rest = self._rest_of_late(changes[-1]) if changes and may_be_together else 0.0
            if not rest:
                alone.add(key)
                continue
            if not self._together:
                self._together_until, self._has_come = now + rest, False
                self._set_timer()
            self._together.add(key)
        self._rest_alone(alone)

    def came(self, changes: Sequence[tuple[str, Change]]) -> None:
        """Note that changes have come, each of a key; what is not late waits for none that is."""
        self._has_come = True
        if self._together:
            # Canonical texts, without their Z, are in the order of the instants.
            late = format_timestamp(Nanoseconds(self._clock.now() - int(_LATE * _SECOND)))[:-1]
            self._rest_alone(self._together & {key for key, change in changes if change.commit_timestamp[:-1] > late})

    def hurry(self, seconds: float = 0.0) -> None:
        """Let those that rest together end in a moment, and none begin to do so for so many seconds."""
        self._together_until = 0.0
        self._alone_until = max(self._alone_until, asyncio.get_running_loop().time() + seconds)

    def _rest_alone(self, keys: AbstractSet[str]) -> None:
        self._together -= keys
        if keys:
            asyncio.get_running_loop().call_later(self._rest, self._ended, keys)

    def _rest_of_late(self, change: Change) -> float:
        """Return for how many seconds a key rests with others whose last change this is; 0 where it is not late."""
        age = (self._clock.now() - parse_timestamp(change.commit_timestamp)) / _SECOND
        rest = min(age / _AGE_FOR_REST, _LONGEST_REST)
        return rest if age > _LATE and rest > self._rest else 0.0

    def _set_timer(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(_NOTHING_COMES, self._look)

    def _look(self) -> None:
        self._is_timed = False
        if self._has_come and asyncio.get_running_loop().time() < self._together_until and not self._is_half_full():
            self._has_come = False
            self._set_timer()
            return
        keys, self._together = self._together, set()
        self._ended(keys)
