"""The control endpoint: what can be asked of the stand-in and not of BigQuery; for tests and the demo only.

GET    /control/stats            counts of connections, appends and refusals, each table's rows, and how often
                                 its definition was altered
POST   /control/faults           let something go wrong: the fields of `faults.Fault`
DELETE /control/faults           let everything be right again; with {"fault": n} only that one
POST   /control/idle             {"seconds": 0.5}: close connections that are idle for so long
POST   /control/limits           {"connections": 20}: refuse more at once; {"bytes_per_second": 1000}: refuse faster
                                 appends of any one project (null: as BigQuery has it); {"table_updates": 10}:
                                 refuse to change a table more than five times in so many seconds (null: do not);
                                 {"response_bytes": 1000}: refuse larger results of queries (null: as BigQuery has it)
POST   /control/clock            {"seconds": 600}: put the clock forward
POST   /control/delay            {"new_tables": 5, "alterations": 180}: what the write API notices late
DELETE /control/delay            it notices at once again
POST   /control/applies/hold     start no background apply (of {"table": "p.d.t"}, or of any)
POST   /control/applies/release  start them again
POST   /control/applies/run      run one now, paused or not, and wait for it
POST   /control/applies/past     {"table": "p.d.t", "seconds": 90, "slot_seconds": 60, "bytes": 1000, "ago": 3600}: let
                                 the history of jobs have one more, that began so many seconds ago
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

from emulators.bigquery.errors import invalid
from emulators.bigquery.faults import Counters, Fault, Faults
from emulators.bigquery.throughput import BYTES_PER_SECOND, Throughput
from emulators.bigquery.visibility import Delay
from emulators.bigquery.warehouse import RESPONSE_BYTES, Warehouse


class AdvancingClock:
    """The machine's clock, and what it has been put forward by. Tombstones and timestamps go by it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead = 0

    def now(self) -> int:
        """Return the time in microseconds since the epoch."""
        return time.time_ns() // 1_000 + self._ahead

    def advance(self, seconds: float) -> None:
        """Put the clock forward."""
        with self._lock:
            self._ahead += round(seconds * 1_000_000)


class Control:
    """What can be asked of the stand-in that cannot be asked of BigQuery."""

    def __init__(
        self,
        warehouse: Warehouse,
        faults: Faults,
        counters: Counters,
        clock: AdvancingClock,
        throughput: Throughput,
    ) -> None:
        self._warehouse = warehouse
        self._throughput = throughput
        self.faults = faults
        self._counters = counters
        self._clock = clock

    def stats(self) -> Mapping[str, Any]:
        """Return what has been counted, how many rows each table has now, and how often it was altered."""
        counts = dict(self._counters.read())
        tables = {name: dict(values) for name, values in counts["tables"].items()}
        for table in self._warehouse.all_tables():
            name = f"{table.name.project}.{table.name.dataset}.{table.name.table}"
            tables.setdefault(name, {}).update(rows=self._warehouse.count_rows(table), alterations=table.version - 1)
        return {**counts, "faults_met": self.faults.met, "tables": tables}

    def add_fault(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add a fault: the fields of `faults.Fault`; return its number, by which it can be removed."""
        try:
            return {"fault": self.faults.add(Fault(**body))}
        except (TypeError, ValueError) as error:
            raise invalid(str(error)) from error

    def clear_faults(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let everything be right again; or, of ``{"fault": number}``, one thing."""
        self.faults.clear(body.get("fault"))
        if "fault" not in body:
            self._throughput.limit(BYTES_PER_SECOND)
            self._warehouse.updates.limit(None)
            self._warehouse.response_bytes = RESPONSE_BYTES
        return {}

    def pause_applies(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let no background apply start: of ``{"table": "p.d.t"}``, or of any table."""
        self._warehouse.staleness.pause(str(body.get("table", "")))
        return {}

    def resume_applies(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let background applies start again: of one table, or of all."""
        self._warehouse.staleness.resume(str(body.get("table", "")))
        return {}

    def apply_now(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run one background apply of ``{"table": "p.d.t"}``, or one of each table, paused or not, and wait for it."""
        asked = str(body.get("table", ""))
        applied = [table for table in self._warehouse.all_tables() if asked in ("", table.name.dotted)]
        for table in applied:
            self._warehouse.apply(table)
        return {"applied": [table.name.dotted for table in applied]}

    def add_past_apply(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add a background apply of ``{"table": "p.d.t"}`` to the history of jobs, as if it had been run."""
        seconds, slot_seconds, ago = (float(body.get(name, 0)) for name in ("seconds", "slot_seconds", "ago"))
        began = self._clock.now() - round(ago * 1e6)
        for table in self._warehouse.all_tables():
            if table.name.dotted == body.get("table"):
                ended = began + round(seconds * 1e6)
                self._warehouse.note_apply(table, began, ended, round(slot_seconds * 1e3), int(body.get("bytes", 0)))
                return {}
        raise invalid(f"There is no table {body.get('table')}")

    def set_delay(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let the write API be seconds behind: ``{"new_tables": 5, "alterations": 180, "table": "p.d.t"}``."""
        rest = {name: float(value) for name, value in body.items() if name != "table"}
        try:
            self._warehouse.visibility.delay(str(body.get("table", "")), Delay(**rest))
        except TypeError as error:
            raise invalid(str(error)) from error
        return {}

    def clear_delay(self) -> Mapping[str, Any]:
        """Let the write API see everything at once again."""
        self._warehouse.visibility.clear()
        return {}

    def set_limits(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set how many connections may be open at once, how many bytes a second a project may append, and so on.

        Only what is named is set; null takes the limit of connections off, and gives back the quota of throughput.
        How often a table is changed is not limited unless ``table_updates`` names seconds; BigQuery's are 10.
        """
        if "connections" in body:
            self.faults.connections = None if body["connections"] is None else int(body["connections"])
        if "bytes_per_second" in body:
            asked = body["bytes_per_second"]
            self._throughput.limit(BYTES_PER_SECOND if asked is None else int(asked))
        if "table_updates" in body:
            asked = body["table_updates"]
            self._warehouse.updates.limit(None if asked is None else float(asked))
        if "response_bytes" in body:
            asked = body["response_bytes"]
            self._warehouse.response_bytes = RESPONSE_BYTES if asked is None else int(asked)
        return {}

    def set_idle(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set how long a connection may be idle, for what it waits for from now on: ``{"seconds": 0.5}``."""
        self.faults.idle_seconds = float(body["seconds"])
        return {}

    def advance_clock(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the clock forward: ``{"seconds": 172800}``."""
        self._clock.advance(float(body["seconds"]))
        return {}
