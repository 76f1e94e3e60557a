"""The last change by `sql` or `add`, and whether BigQuery has it: what `query --wait` waits for."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from deploy.local.platform.processes import wait_until
from deploy.local.platform.services import Endpoint
from deploy.local.platform.target import COMMIT_TIMESTAMP, BigQueryDataset
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.runtime.stop import Stop

_WITHIN: Final = timedelta(minutes=1)
_IGNORED: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/|@\{[^}]*\})*"  # comments and hints
_VERB: Final = r"(?P<verb>INSERT(?:\s+OR\s+(?:UPDATE|IGNORE))?(?:\s+INTO)?|UPDATE|DELETE(?:\s+FROM)?)"
_DML: Final = re.compile(rf"{_IGNORED}{_VERB}\s+[`\"]?(?P<table>[\w.]+)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction that a command of this platform committed, in one table.

    ``committed`` may be a little earlier than the commit. ``rows`` is how many rows of the mirror show it, at least;
    0 where no row does, as after a DELETE.
    """

    table: str
    committed: Nanoseconds
    rows: int = 0

    def __str__(self) -> str:
        """Return what it is called to people."""
        return f"the change of {self.table} at {format_timestamp(self.committed)}"


def change_of(statement: str, rows: int, committed: Nanoseconds) -> Change:
    """Return the change that a DML statement made; ``rows`` is how many rows Spanner says it changed."""
    verb, table = _parsed(statement)
    return Change(table, committed, 0 if verb == "DELETE" else rows)


def check_dml(statement: str) -> None:
    """Raise MisconfiguredError where a statement changes no table, before it is run."""
    _parsed(statement)


def is_applied(change: Change, consumer: Endpoint, dataset: BigQueryDataset) -> bool:
    """Return whether BigQuery has a change, all rows of an INSERT or UPDATE.

    A later change of the same table by another program can pass for it; of a DELETE of several rows, the first does.
    """
    since = Nanoseconds(change.committed // 1000 * 1000)  # a mirror has microseconds
    for state in consumer.status().get("tables", ()):
        if state["table"].casefold() == change.table.casefold():  # as Spanner compares names
            applied = state["committed"] is not None and parse_timestamp(state["committed"]) >= since
            return applied and (not change.rows or _rows_since(dataset, state["table"], since) >= change.rows)
    return False


def wait_until_applied(change: Change, consumer: Endpoint, dataset: BigQueryDataset, stop: Stop) -> None:
    """Wait until BigQuery has a change; ProcessDiedError where it does not come."""
    wait_until(
        lambda: is_applied(change, consumer, dataset),
        f"{change} to be applied (`status` and `dead-letters groups` name what is in its way)",
        timeout=_WITHIN,
        stop=stop,
    )


def _rows_since(dataset: BigQueryDataset, table: str, since: Nanoseconds) -> int:
    where = f"{COMMIT_TIMESTAMP} >= TIMESTAMP '{format_timestamp(since)}'"
    (counted,) = dataset.query(f"SELECT COUNT(*) AS total FROM `{table}` WHERE {where}")
    return int(counted["total"])


def _parsed(statement: str) -> tuple[str, str]:
    found = _DML.match(statement)
    if found is None:
        raise MisconfiguredError(
            "not-a-change", f"no INSERT, UPDATE or DELETE of a table: {statement}; `query` asks BigQuery"
        )
    return found["verb"].split()[0].upper(), found["table"]
