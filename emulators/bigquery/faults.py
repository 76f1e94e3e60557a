"""Faults on demand, and what has been counted: for tests that need BigQuery to fail in a certain way at a certain time.

Real clients meet all of these: a refusal before or after the rows are taken, silence, a stream closed as idle.
"""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import grpc

from emulators.bigquery.append_errors import AppendRefusedError, closing
from emulators.bigquery.errors import REASONS, ApiError
from emulators.bigquery.protocol import StorageError
from emulators.bigquery.routing import NOT_ROUTED

IDLE_SECONDS: Final = 600.0
"""How long a connection may be idle; the message that closes one names it."""

When = Literal["before", "after"]
_REASONS: Final = {
    "PERMISSION_DENIED": "accessDenied",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "UNAVAILABLE": "backendError",
    "NOT_FOUND": "notFound",
    "INVALID_ARGUMENT": "invalid",
    "FAILED_PRECONDITION": "conditionNotMet",
    "ALREADY_EXISTS": "duplicate",
}
"""What a status is called in REST (BigQuery, "Error messages"); any other is an internal error."""


@dataclass
class Fault:
    """What shall go wrong with appends or REST calls: to one table (``project.dataset.table``) or, empty, to all.

    ``before``: nothing of the request is done; ``after``: all is, but no answer comes. ``close`` ends the stream
    with the status, ``answer`` puts it into an answer, ``stall`` gives no answer at all until the fault is removed.
    ``storage_error`` is a StorageErrorCode beside the status; ``row`` blames one row by its index. ``containing``: only
    requests with this text in them (a row that BigQuery chokes on). ``times``: how many requests it meets; None until
    removed. Of REST calls, ``method`` chooses those of one HTTP method; the action makes no difference unless it is
    ``stall``; ``reason`` is the one in the answer where it is to be another than the status has (`_REASONS`).
    ``on`` routing: refuse calls of the write API without routing header, as the service does with some of them
    (`routing`); status and message are the service's, and neither table nor text can be chosen.
    ``on`` rights: tables.testIamPermissions answers that the caller has none of the rights it asks for.
    """

    action: Literal["close", "answer", "stall"]
    when: When = "before"
    table: str = ""
    status: str = "UNAVAILABLE"
    message: str = "fault on demand"
    times: int | None = None
    storage_error: str = ""
    row: int | None = None
    containing: str = ""
    on: Literal["append", "rest", "rights", "routing"] = "append"
    method: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.action not in ("close", "answer", "stall") or self.when not in ("before", "after"):
            raise ValueError("action is close, answer or stall; when is before or after")
        if self.status not in grpc.StatusCode.__members__:
            raise ValueError(f"not a gRPC status: {self.status}")
        if self.storage_error and self.storage_error not in StorageError.StorageErrorCode.keys():  # noqa: SIM118
            raise ValueError(f"not a StorageErrorCode: {self.storage_error}")
        if self.on not in ("append", "rest", "rights", "routing"):
            raise ValueError("on is append, rest, rights or routing")
        if self.reason and self.reason not in REASONS:
            raise ValueError(f"not a reason: {self.reason}")

    def refusal(self) -> AppendRefusedError:
        """Return what an append is refused with."""
        return AppendRefusedError(
            self.message,
            code=grpc.StatusCode[self.status],
            storage_code=StorageError.StorageErrorCode.Value(self.storage_error) if self.storage_error else None,
            entity=self.table,
            closes=self.action == "close",
            row_errors={} if self.row is None else {self.row: self.message},
        )


class Faults:
    """The faults that are due. Used from the event loop and from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[int, Fault] = {}
        self._numbers = 0
        self.connections: int | None = None
        """How many connections may be open at once; None: any number."""
        self.idle_seconds = IDLE_SECONDS
        self.met = 0
        """How many requests have met one since the faults were last cleared."""

    def add(self, fault: Fault) -> int:
        """Let something go wrong from now on; return the number to remove it by."""
        with self._lock:
            self._numbers += 1
            self._faults[self._numbers] = fault
            return self._numbers

    def clear(self, number: int | None = None) -> None:
        """Let everything be right again, what is stalled included; or remove one fault."""
        with self._lock:
            if number is not None:
                self._faults.pop(number, None)
                return
            self._faults.clear()
            self.met = 0
        self.idle_seconds, self.connections = IDLE_SECONDS, None

    async def meet(self, when: When, table: str, request: bytes) -> None:
        """Let an append meet what is due: return, raise the refusal, or wait until the fault is removed."""
        if self._faults:
            fault = await self._met(lambda fault: fault.on == "append", when, table, request)
            if fault is not None:
                raise fault.refusal()

    async def meet_call(self, when: When, table: str, method: str, body: bytes) -> None:
        """Let a REST call meet what is due: return, raise ApiError, or wait until the fault is removed."""
        if self._faults:
            chosen = await self._met(lambda f: f.on == "rest" and f.method in ("", method), when, table, body)
            if chosen is not None:
                reason = chosen.reason or _REASONS.get(chosen.status, "internalError")
                raise ApiError(reason, chosen.message)

    def meet_unrouted(self) -> None:
        """Let a call without routing header meet what is due: return, or raise the service's refusal."""
        if self._faults and self._due(lambda fault: fault.on == "routing", "before", "", b"")[1] is not None:
            raise closing(NOT_ROUTED)

    def no_rights(self, table: str) -> bool:
        """Return whether the caller is to have no right on a table."""
        return bool(self._faults) and self._due(lambda fault: fault.on == "rights", "before", table, b"")[1] is not None

    async def _met(self, concerns: Callable[[Fault], bool], when: When, table: str, request: bytes) -> Fault | None:
        number, fault = self._due(concerns, when, table, request)
        if fault is None or fault.action != "stall":
            return fault
        while number in self._faults:  # noqa: ASYNC110 - removed by another thread, which cannot set an asyncio event
            await asyncio.sleep(0.02)
        return None

    def _due(
        self, concerns: Callable[[Fault], bool], when: When, table: str, request: bytes
    ) -> tuple[int, Fault | None]:
        with self._lock:
            for number, fault in self._faults.items():
                due = fault.when == when and fault.table in ("", table) and fault.times != 0
                if due and concerns(fault) and fault.containing.encode() in request:
                    if fault.times is not None:
                        fault.times -= 1
                    self.met += 1
                    return number, fault
        return 0, None


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
