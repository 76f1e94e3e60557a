"""Faults on demand: what a call of any method meets instead of, or after, what it asked for."""

import asyncio
from dataclasses import dataclass
from typing import Literal

import grpc

from emulators.bigtable_streams.refusals import RefusedError

When = Literal["before", "after"]


@dataclass
class Fault:
    """What shall go wrong with calls of a method (its last name, as ``MutateRow``; empty: of any).

    ``before``: nothing is done; ``after``: all is, but the client gets the status. ``stall`` gives no answer until
    the fault is removed. ``containing``: only requests with these bytes in them, such as a table's name. ``times``: how
    many calls it meets; None until removed.
    """

    method: str = ""
    status: str = "UNAVAILABLE"
    message: str = "fault on demand"
    when: When = "before"
    action: Literal["refuse", "stall"] = "refuse"
    containing: bytes = b""
    times: int | None = None

    def __post_init__(self) -> None:
        if self.status not in grpc.StatusCode.__members__ or self.status == "OK":
            raise ValueError(f"not a status to fail with: {self.status}")


class Faults:
    """The faults that are due."""

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._numbers = 0
        self.met = 0

    def add(self, fault: Fault) -> int:
        """Let something go wrong from now on; return the number to remove it by."""
        self._numbers += 1
        self._faults[self._numbers] = fault
        return self._numbers

    def clear(self, number: int | None = None) -> None:
        """Let everything be right again, or remove one fault."""
        if number is None:
            self._faults.clear()
        else:
            self._faults.pop(number, None)

    async def meet(self, when: When, method: str, request: bytes) -> None:
        """Let a call meet what is due: return, raise RefusedError, or wait until the fault is removed."""
        for number, fault in list(self._faults.items()):
            if fault.when != when or fault.method not in ("", method.rsplit("/", 1)[-1]) or fault.times == 0:
                continue
            if fault.containing not in request:
                continue
            if fault.times is not None:
                fault.times -= 1
            self.met += 1
            if fault.action == "refuse":
                raise RefusedError(grpc.StatusCode[fault.status], fault.message)
            while number in self._faults:  # noqa: ASYNC110 - seldom, and for tests: simpler than an event for each
                await asyncio.sleep(0.02)
            return
