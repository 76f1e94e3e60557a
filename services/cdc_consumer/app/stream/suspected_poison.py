"""Suspected poison records: messages that were delivered often, one of which may crash the process.

Before some of them are handled together, a crash is counted for each; afterwards it is erased. So a message that was
nacked, deferred, or waited for a service is cleared however often it was delivered, and costs hardly more than any
other. From its first crash on each message is handled alone, which clears its neighbours; one over which several
processes crashed in a row is dead-lettered without being decoded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.ports import CrashCounts
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds

_SUSPECTED_AFTER: Final = 2  # deliveries: a message that ends the process has then ended two
_TOGETHER: Final = 100
"""So many suspected messages over which no process has crashed are handled together."""


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """Messages that are handled together. ``fatal``: decoding them is taken to crash the process."""

    messages: pa.Table
    fatal: bool = False
    suspected: bool = False
    """They may crash the process: a crash is counted before they are handled, and erased afterwards."""


class Watch:
    """Counts the crashes over the messages of a task."""

    def __init__(self, crash_counts: CrashCounts) -> None:
        self._crash_counts = crash_counts
        self._over: Sequence[str] = ()
        self._before = 0

    @contextmanager
    def handling(self, group: MessageGroup) -> Iterator[set[int]]:
        """Count a crash over each suspected message of a group, until the block has ended.

        An unknown error ends the process as surely as a signal does, so after one the crash stays counted. So it does
        over fatal messages that the block adds to the yielded set: their dead letters cannot be kept now, so they come
        again, and have not been decoded.
        """
        names = _names(group.messages) if group.suspected or group.fatal else ()
        deferred: set[int] = set()
        self._begin(group)
        try:
            yield deferred
        except (MisconfiguredError, TransientError):  # it is not the message that ends the process
            self.waits()
            raise
        if group.fatal:
            names = [name for row, name in enumerate(names) if row not in deferred]
        if names:
            self._crash_counts.set_counts(names, 0)
        self._over = ()

    @contextmanager
    def decoding(self, group: MessageGroup) -> Iterator[None]:
        """Count a crash over suspected messages while they are decoded; restore their counts afterwards.

        They have still to be handled. They do not cause a MisconfiguredError, as above.
        """
        self._begin(group)
        try:
            yield
        except MisconfiguredError:
            self.waits()
            raise
        self.waits()

    def _begin(self, group: MessageGroup) -> None:
        if group.suspected:
            self._over = _names(group.messages)
            self._before = max(self._crash_counts.read_counts(self._over) or [0])  # of several there was none
            self._crash_counts.set_counts(self._over, self._before + 1)

    def waits(self) -> None:
        """Restore the counts: the task waits for a service, so if the process ends now, no message is the cause."""
        if self._over:
            self._crash_counts.set_counts(self._over, self._before)
            self._over = ()


def in_groups(
    messages: pa.Table, now: Nanoseconds, limits: RetryLimits, crash_counts: CrashCounts
) -> Sequence[MessageGroup]:
    """Return all messages together but those that were delivered often: these come last.

    Those without a crash are together, a hundred at a time. Then each other is alone, those with most crashes last; and
    so is every one where crashes are not counted. The order turns around from one delivery to the next, so that a
    message behind a fatal one is before it then.
    """
    deliveries = messages["delivery_attempt"].fill_null(0).to_numpy()
    often = np.flatnonzero(deliveries > _SUSPECTED_AFTER)
    if not len(often):
        return [MessageGroup(messages)]
    names = dict(zip(map(int, often), _names(_some(messages, often)), strict=True))
    counted = crash_counts.read_counts(list(names.values()))
    if counted is None:
        over = dict.fromkeys(names, 1)
        ages = (now // 1000 - messages["publish_time"].cast(pa.int64()).fill_null(0).to_numpy()) / 1e6
        fatal = {row for row in names if is_fatal(int(deliveries[row]), float(ages[row]), limits)}
    else:
        over = dict(zip(names, counted, strict=True))
        fatal = {row for row in names if over[row] >= limits.fatal_crashes}
    odd, even = ([row for row in names if row not in fatal and deliveries[row] % 2 == parity] for parity in (1, 0))
    suspected = sorted(odd, key=lambda row: names[row])
    suspected += sorted(even, key=lambda row: names[row], reverse=True)
    suspected.sort(key=lambda row: (over[row], deliveries[row]))  # stable: the order above stays among equals
    together = [row for row in suspected if not over[row]]
    bundles = [_some(messages, together[start : start + _TOGETHER]) for start in range(0, len(together), _TOGETHER)]
    bundles += [messages.slice(row, 1) for row in suspected if over[row]]
    rest = np.flatnonzero(deliveries <= _SUSPECTED_AFTER)
    groups = [MessageGroup(_some(messages, rest)), MessageGroup(_some(messages, list(fatal)), fatal=True)]
    groups += [MessageGroup(each, suspected=True) for each in bundles]
    return [one for one in groups if len(one.messages)]


def _some(messages: pa.Table, rows: Sequence[int] | npt.NDArray[np.int64]) -> pa.Table:
    """Return those messages, in the order in which they came."""
    chosen = np.zeros(len(messages), dtype=bool)
    chosen[np.asarray(rows, dtype=np.int64)] = True
    return messages.filter(pa.array(chosen))


def is_fatal(deliveries: int, age: float, limits: RetryLimits) -> bool:
    """Return, where crashes are not counted, whether a message ``age`` seconds after its publication came too often.

    It was not deferred so often: that would have taken twice that time. So the processes that leased it crashed before
    they settled it. One that comes slowly, because restarts are slow or it is old already, is not found: Pub/Sub
    forwards it.
    """
    if deliveries < limits.fatal_deliveries:
        return False
    deferred = sum((limits.deferral_at(one) for one in range(1, deliveries)), timedelta(0))
    return age < deferred.total_seconds() / 2


def _names(messages: pa.Table) -> Sequence[str]:
    """Return names of messages that are unique in the subscription: an emulator begins its ids again."""
    published = messages["publish_time"].cast(pa.int64()).to_pylist()
    return [f"{one} {at}" for one, at in zip(messages["message_id"].to_pylist(), published, strict=True)]
