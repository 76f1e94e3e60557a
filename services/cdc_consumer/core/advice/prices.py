"""What Google bills for, in US dollars: list prices of the multi-region US. Nothing checks them: they are options."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Self

from shared.contracts.errors import MisconfiguredError

AS_OF: Final = "June 2026"
"""When the defaults were found in copies of Google's price pages, and in what others quote of them."""
_DOLLARS: Final = re.compile(r"\d+(\.\d+)?", re.ASCII)
TIB: Final = 1 << 40
GIB: Final = 1 << 30
FREE_WRITES: Final = 2 * TIB
"""Bytes a month that the Storage Write API takes for nothing ("Introduction to the Storage Write API", benefits)."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars; each field is a name of the option ``--price``."""

    on_demand: float = 6.25
    """A TiB that a query or a background apply reads."""
    slot_hour: float = 0.06
    """Of Enterprise edition without a commitment."""
    write: float = 0.025
    """A GiB through the Storage Write API, beyond what is free."""
    pubsub: float = 40.0
    """A TiB that is published, or delivered."""
    pubsub_storage: float = 0.27
    """A GiB for a month, of messages that have waited for more than a day."""
    bigtable_storage: float = 0.17
    """A GiB for a month, on SSD, in one cluster."""

    def changed(self, options: Iterable[str]) -> Self:
        """Return them with those that are given as ``NAME=DOLLARS``; MisconfiguredError for any other text."""
        names = [field.name for field in fields(self)]
        given: dict[str, float] = {}
        for option in options:
            name, _equals, amount = option.partition("=")
            if name not in names or _DOLLARS.fullmatch(amount) is None:
                raise MisconfiguredError(
                    "price-invalid", f"--price {option}: write NAME=DOLLARS, with a NAME of {', '.join(names)}"
                )
            given[name] = float(amount)
        return replace(self, **given)
