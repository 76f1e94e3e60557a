"""Messages that have come often: one of them may be what ends the process, whatever else they held it together with.

Some of them are handled together, and that is counted as a death of the process over each until the process has
outlived them. So a message that was put off, or given back, or waited for a service, is innocent however often it has
come, and costs hardly more than any other. From its first death on each is handled alone, which clears its neighbours;
one over which several processes ended in a row is set aside without being looked into.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from services.cdc_consumer.app.stream.trouble import Patience
from services.cdc_consumer.ports import Deaths
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds

_SUSPECT_AFTER: Final = 2  # deliveries: a message that ends the process has then ended two
_TOGETHER: Final = 100
"""So many suspects over which no process has ended are handled together."""


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that are handled together. ``fatal``: they are taken to end whoever decodes them."""

    messages: pa.Table
    fatal: bool = False
    suspect: bool = False
    """They may end whoever handles them: it is counted as a death until he has outlived it."""


class NotCounted:
    """The Deaths of whoever has nowhere to keep them."""

    def counted(self, messages: Sequence[str]) -> Sequence[int] | None:
        """Return that nobody can tell."""
        del messages
        return None

    def count(self, messages: Sequence[str], deaths: int) -> None:
        """Remember nothing."""


class Watch:
    """Counts the deaths over the messages of a task."""

    def __init__(self, deaths: Deaths) -> None:
        self._deaths = deaths
        self._over: Sequence[str] = ()
        self._before = 0

    @contextmanager
    def handling(self, group: Group) -> Iterator[None]:
        """Count a death over each of the suspects in a group, until the block has ended.

        An error that nobody knows ends the process as surely as a signal does, so after one the death stays counted.
        """
        names = _names(group.messages) if group.suspect or group.fatal else ()
        self._begin(group)
        try:
            yield
        except (MisconfiguredError, TransientError):  # it is not the message that ends the process
            self.waits()
            raise
        if names:
            self._deaths.count(names, 0)
        self._over = ()

    @contextmanager
    def looking_into(self, group: Group) -> Iterator[None]:
        """Count a death over suspects that are looked into; what was counted before is left as it was after it.

        They have still to be handled. MisconfiguredError is none of their doing, as above.
        """
        self._begin(group)
        try:
            yield
        except MisconfiguredError:
            self.waits()
            raise
        self.waits()

    def _begin(self, group: Group) -> None:
        if group.suspect:
            self._over = _names(group.messages)
            self._before = max(self._deaths.counted(self._over) or [0])  # of several there was none
            self._deaths.count(self._over, self._before + 1)

    def waits(self) -> None:
        """Take back what was counted: a service is waited for, and if the process ends now, it is not the message."""
        if self._over:
            self._deaths.count(self._over, self._before)
            self._over = ()


def in_groups(messages: pa.Table, now: Nanoseconds, patience: Patience, deaths: Deaths) -> Sequence[Group]:
    """Return all messages together but those that have come often: these come last.

    Those without a death are together, a hundred at a time. Then each other is alone, those with most deaths last; and
    so is every one where nobody can tell of deaths. The order turns around from one delivery to the next, so that what
    is behind a fatal message is before it then.
    """
    deliveries = messages["delivery_attempt"].fill_null(0).to_numpy()
    often = np.flatnonzero(deliveries > _SUSPECT_AFTER)
    if not len(often):
        return [Group(messages)]
    names = dict(zip(map(int, often), _names(_some(messages, often)), strict=True))
    counted = deaths.counted(list(names.values()))
    if counted is None:
        over = dict.fromkeys(names, 1)
        ages = (now // 1000 - messages["publish_time"].cast(pa.int64()).fill_null(0).to_numpy()) / 1e6
        fatal = {row for row in names if is_fatal(int(deliveries[row]), float(ages[row]), patience)}
    else:
        over = dict(zip(names, counted, strict=True))
        fatal = {row for row in names if over[row] >= patience.fatal_deaths}
    odd, even = ([row for row in names if row not in fatal and deliveries[row] % 2 == parity] for parity in (1, 0))
    suspects = sorted(odd, key=lambda row: names[row])
    suspects += sorted(even, key=lambda row: names[row], reverse=True)
    suspects.sort(key=lambda row: (over[row], deliveries[row]))  # stable: the order above stays among equals
    together = [row for row in suspects if not over[row]]
    bundles = [_some(messages, together[start : start + _TOGETHER]) for start in range(0, len(together), _TOGETHER)]
    bundles += [messages.slice(row, 1) for row in suspects if over[row]]
    rest = np.flatnonzero(deliveries <= _SUSPECT_AFTER)
    groups = [Group(_some(messages, rest)), Group(_some(messages, list(fatal)), fatal=True)]
    groups += [Group(each, suspect=True) for each in bundles]
    return [one for one in groups if len(one.messages)]


def _some(messages: pa.Table, rows: Sequence[int] | npt.NDArray[np.int64]) -> pa.Table:
    """Return those messages, in the order in which they came."""
    chosen = np.zeros(len(messages), dtype=bool)
    chosen[np.asarray(rows, dtype=np.int64)] = True
    return messages.filter(pa.array(chosen))


def is_fatal(deliveries: int, age: float, patience: Patience) -> bool:
    """Tell where deaths are not counted whether a message, ``age`` seconds after it was published, came too often.

    It was not put off so often: that would have taken twice that time. So whoever held it did not live to settle it.
    One that comes slowly, because restarts take their time or it is old already, is not found: Pub/Sub forwards it.
    """
    if deliveries < patience.fatal_deliveries:
        return False
    put_off = sum((patience.put_off_at(one) for one in range(1, deliveries)), timedelta(0))
    return age < put_off.total_seconds() / 2


def _names(messages: pa.Table) -> Sequence[str]:
    """Return what tells a message from all others of its subscription: an emulator begins its ids anew."""
    published = messages["publish_time"].cast(pa.int64()).to_pylist()
    return [f"{one} {at}" for one, at in zip(messages["message_id"].to_pylist(), published, strict=True)]
