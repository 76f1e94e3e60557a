"""Messages that have come often: one of them may be what ends the process, whatever else they held it together with.

Each is handled alone, and that is counted as a death of the process over it until the process has outlived it. So a
message that was put off, or given back, or waited for a service, is innocent however often it has come; one over which
several processes ended in a row is set aside without being looked into.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from services.cdc_consumer.ports import Deaths
from services.cdc_consumer.trouble import Patience
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds

_SUSPECT_AFTER: Final = 3  # deliveries: a message that ends the process has then ended three


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that are handled together. ``fatal``: they are taken to end whoever decodes them."""

    messages: pa.Table
    fatal: bool = False
    alone: bool = False


class NotCounted:
    """The Deaths of whoever has nowhere to keep them."""

    def counted(self, message: str) -> int | None:
        """Return that nobody can tell."""
        del message
        return None

    def count(self, message: str, deaths: int) -> None:
        """Remember nothing."""


class Watch:
    """Counts the deaths over the messages of a task."""

    def __init__(self, deaths: Deaths) -> None:
        self._deaths = deaths
        self._alone: str | None = None
        self._before = 0

    @contextmanager
    def handling(self, group: Group) -> Iterator[None]:
        """Count a death over a message that is handled alone, until the block has ended.

        An error that nobody knows ends the process as surely as a signal does, so after one the death stays counted.
        """
        names = _names(group.messages) if group.alone or group.fatal else ()
        self._begin(group)
        try:
            yield
        except (MisconfiguredError, TransientError):  # it is not the message that ends the process
            self.waits()
            raise
        for name in names:
            self._deaths.count(name, 0)
        self._alone = None

    @contextmanager
    def looking_into(self, group: Group) -> Iterator[None]:
        """Count a death over a message that is looked into alone; what was counted before is left as it was after it.

        It has still to be handled. MisconfiguredError is none of its doing, as above.
        """
        self._begin(group)
        try:
            yield
        except MisconfiguredError:
            self.waits()
            raise
        self.waits()

    def _begin(self, group: Group) -> None:
        if group.alone:
            (self._alone,) = _names(group.messages)
            self._before = self._deaths.counted(self._alone) or 0
            self._deaths.count(self._alone, self._before + 1)

    def waits(self) -> None:
        """Take back what was counted: a service is waited for, and if the process ends now, it is not the message."""
        if self._alone is not None:
            self._deaths.count(self._alone, self._before)
            self._alone = None


def in_groups(messages: pa.Table, now: Nanoseconds, patience: Patience, deaths: Deaths) -> Sequence[Group]:
    """Return all messages together but those that have come often: each of these alone, the most frequent last.

    The order turns around from one delivery to the next, so that what is behind a fatal message is before it then.
    """
    deliveries = messages["delivery_attempt"].fill_null(0).to_numpy()
    often = deliveries > _SUSPECT_AFTER
    if not often.any():
        return [Group(messages)]
    ages = (now // 1000 - messages["publish_time"].cast(pa.int64()).fill_null(0).to_numpy()) / 1e6
    names = _names(messages)
    fatal = np.zeros(len(messages), dtype=bool)
    for row in map(int, np.flatnonzero(often)):
        counted = deaths.counted(names[row])
        fatal[row] = (
            is_fatal(int(deliveries[row]), float(ages[row]), patience)
            if counted is None
            else counted >= patience.fatal_deaths
        )
    often &= ~fatal
    odd, even = ([int(row) for row in np.flatnonzero(often & (deliveries % 2 == parity))] for parity in (1, 0))
    suspects = sorted(odd, key=lambda row: names[row])
    suspects += sorted(even, key=lambda row: names[row], reverse=True)
    suspects.sort(key=lambda row: deliveries[row])  # stable: the order above stays among equals
    groups = [Group(messages.filter(pa.array(~often & ~fatal))), Group(messages.filter(pa.array(fatal)), fatal=True)]
    alone = [Group(messages.slice(row, 1), alone=True) for row in suspects]
    return [*(one for one in groups if len(one.messages)), *alone]


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
