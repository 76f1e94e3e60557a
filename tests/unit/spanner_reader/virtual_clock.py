"""Spanner's clock in virtual time."""

import asyncio

from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_reader import SteppingClock


class VirtualSpannerClock(SteppingClock):
    """Spanner's clock, which follows the event loop's."""

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return Nanoseconds(self.time + int(asyncio.get_running_loop().time() * 1_000_000_000))
