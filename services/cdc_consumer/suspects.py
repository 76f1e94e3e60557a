"""Messages that have come often: one of them may be what ends the process, whatever else they held it together with."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from services.cdc_consumer.trouble import Patience
from shared.contracts.timestamps import Nanoseconds

_SUSPECT_AFTER: Final = 3  # deliveries: a message that ends the process has then ended three


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that are handled together. ``fatal``: they are taken to end whoever decodes them."""

    messages: pa.Table
    fatal: bool = False


def in_groups(messages: pa.Table, now: Nanoseconds, patience: Patience) -> Sequence[Group]:
    """Return all messages together but those that have come often: each of these alone, the most frequent last.

    The order turns around from one delivery to the next, so that what is behind a fatal message is before it then.
    """
    deliveries = messages["delivery_attempt"].fill_null(0).to_numpy()
    if not (deliveries > _SUSPECT_AFTER).any():
        return [Group(messages)]
    ages = (now // 1000 - messages["publish_time"].cast(pa.int64()).fill_null(0).to_numpy()) / 1e6
    fatal = np.array([is_fatal(int(n), float(age), patience) for n, age in zip(deliveries, ages, strict=True)])
    often = (deliveries > _SUSPECT_AFTER) & ~fatal
    identities = messages["message_id"].to_pylist()
    odd, even = ([int(row) for row in np.flatnonzero(often & (deliveries % 2 == parity))] for parity in (1, 0))
    suspects = sorted(odd, key=lambda row: identities[row])
    suspects += sorted(even, key=lambda row: identities[row], reverse=True)
    suspects.sort(key=lambda row: deliveries[row])  # stable: the order above stays among equals
    groups = [Group(messages.filter(pa.array(~often & ~fatal))), Group(messages.filter(pa.array(fatal)), fatal=True)]
    return [*(one for one in groups if len(one.messages)), *(Group(messages.slice(row, 1)) for row in suspects)]


def is_fatal(deliveries: int, age: float, patience: Patience) -> bool:
    """Tell whether a message, ``age`` seconds after it was published, has come too often to be innocent.

    It was not put off so often: that would have taken twice that time. So whoever held it did not live to settle it.
    """
    if deliveries < patience.fatal_deliveries:
        return False
    put_off = sum((patience.put_off_at(one) for one in range(1, deliveries)), timedelta(0))
    return age < put_off.total_seconds() / 2
