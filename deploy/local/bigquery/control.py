"""The control endpoint: faults on demand, the idle limit, the clock and the counters; for tests and the demo only."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from deploy.local.bigquery.errors import invalid
from deploy.local.bigquery.faults import Counters, Fault, Faults
from deploy.local.bigquery.warehouse import Warehouse


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

    def __init__(self, warehouse: Warehouse, faults: Faults, counters: Counters, clock: AdvancingClock) -> None:
        self._warehouse = warehouse
        self._faults = faults
        self._counters = counters
        self._clock = clock

    def stats(self) -> Mapping[str, Any]:
        """Return what has been counted, and how many rows each table has now."""
        counts = dict(self._counters.read())
        tables = {name: dict(values) for name, values in counts["tables"].items()}
        for table in self._warehouse.all_tables():
            name = f"{table.name.project}.{table.name.dataset}.{table.name.table}"
            tables.setdefault(name, {})["rows"] = self._warehouse.count_rows(table)
        return {**counts, "faults_met": self._faults.met, "tables": tables}

    def add_fault(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add a fault: the fields of `faults.Fault`."""
        try:
            self._faults.add(Fault(**body))
        except (TypeError, ValueError) as error:
            raise invalid(str(error)) from error
        return {}

    def clear_faults(self) -> Mapping[str, Any]:
        """Let everything be right again."""
        self._faults.clear()
        return {}

    def set_idle(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set how long a connection may be idle, for what it waits for from now on: ``{"seconds": 0.5}``."""
        self._faults.idle_seconds = float(body["seconds"])
        return {}

    def advance_clock(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the clock forward: ``{"seconds": 172800}``."""
        self._clock.advance(float(body["seconds"]))
        return {}
