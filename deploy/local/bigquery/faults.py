"""Faults on demand, and what has been counted: for tests that need BigQuery to fail in a certain way at a certain time.

Real clients meet all of these: a refusal before or after the rows are taken, silence, a stream closed as idle.
"""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import grpc

from deploy.local.bigquery.append_errors import AppendRefusedError

IDLE_SECONDS: Final = 600.0
"""How long a connection may be idle; the service says so in the message it closes one with."""

When = Literal["before", "after"]


@dataclass
class Fault:
    """What shall go wrong with appends: to one table (``project.dataset.table``) or, empty, to all.

    ``before``: none of the request's rows are taken; ``after``: all are, but the client is not told. ``close`` ends the
    stream with the status, ``answer`` puts it into an answer, ``stall`` gives no answer at all until faults are
    cleared. ``times``: how many requests it meets; None until cleared.
    """

    action: Literal["close", "answer", "stall"]
    when: When = "before"
    table: str = ""
    status: str = "UNAVAILABLE"
    message: str = "fault on demand"
    times: int | None = None

    def __post_init__(self) -> None:
        if self.action not in ("close", "answer", "stall") or self.when not in ("before", "after"):
            raise ValueError("action is close, answer or stall; when is before or after")
        if self.status not in grpc.StatusCode.__members__:
            raise ValueError(f"not a gRPC status: {self.status}")


class Faults:
    """The faults that are due. Used from the event loop and from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.idle_seconds = IDLE_SECONDS
        self.met = 0
        """How many requests have met one since the faults were last cleared."""

    def add(self, fault: Fault) -> None:
        """Let something go wrong from now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Let everything be right again, what is stalled included."""
        with self._lock:
            self._faults.clear()
            self.met = 0
        self.idle_seconds = IDLE_SECONDS

    async def meet(self, when: When, table: str) -> None:
        """Let what is due now happen: return, raise the refusal, or wait until the fault is cleared."""
        fault = self._due(when, table)
        if fault is None:
            return
        while fault.action == "stall":
            if fault not in self._faults:
                return
            await asyncio.sleep(0.02)
        raise AppendRefusedError(fault.message, code=grpc.StatusCode[fault.status], closes=fault.action == "close")

    def _due(self, when: When, table: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.when == when and fault.table in ("", table) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    self.met += 1
                    return fault
        return None


class Counters:
    """What the write API has done since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._tables: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(self, **amounts: int) -> None:
        """Add to the totals."""
        with self._lock:
            self._totals.update(amounts)

    def count_append(self, table: str, rows: int, size: int) -> None:
        """Add an accepted append."""
        with self._lock:
            self._tables[table].update(appends=1, rows_accepted=rows, bytes=size)

    def count_refusal(self, table: str) -> None:
        """Add a refused append."""
        with self._lock:
            self._tables[table].update(refused=1)

    def read(self) -> Mapping[str, Any]:
        """Return all counts."""
        with self._lock:
            totals = {"connections_opened": 0, "connections_open": 0, "appends": 0, "refused": 0} | dict(self._totals)
            for counts in self._tables.values():
                totals["appends"] += counts["appends"]
                totals["refused"] += counts["refused"]
            return {**totals, "tables": {name: dict(counts) for name, counts in self._tables.items()}}
