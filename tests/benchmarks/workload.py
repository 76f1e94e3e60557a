"""The changes that are measured: five tables of ten columns, 450 bytes of row each, one change in twenty a delete.

A row is a function of its key and of the number of the change that wrote it, which is also in its column `visits`. So
what BigQuery has to hold in the end takes an integer per row to remember, and every value can be compared.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from shared.contracts.timestamps import Nanoseconds

TABLES: Final = ("customers", "orders", "payments", "shipments", "visits")
COLUMNS: Final[Mapping[str, str]] = {
    "id": "INT64",
    "name": "STRING",
    "email": "STRING",
    "amount": "NUMERIC",
    "score": "FLOAT64",
    "active": "BOOL",
    "born": "DATE",
    "seen": "TIMESTAMP",
    "visits": "INT64",
    "note": "STRING",
}
CHANGE_STREAM: Final = "everything"
MODS: Final = 4
"""Changes in a record: a transaction writes about as many rows of a table."""
DELETES: Final = 0.05
ZIPF: Final = 1.1
_SOURCE: Final = "//spanner.googleapis.com/projects/bench/instances/bench/databases/bench/changeStreams/everything"
_EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)
_words = np.random.default_rng(7)
_NAMES: Final = [f"{''.join(_words.choice(list('abcdefghij'), 18))}" for _ in range(64)]
_NOTES: Final = ["".join(_words.choice(list("klmnopqrst  "), 240)) for _ in range(256)]

Row = dict[str, Any]


def spanner_schema() -> Sequence[str]:
    """Return the DDL of the tables in Spanner and of their change stream."""
    texts = {"STRING": "STRING(MAX)"}
    tables = [
        f"CREATE TABLE {table} (id INT64 NOT NULL, "
        + ", ".join(f"{name} {texts.get(kind, kind)}" for name, kind in COLUMNS.items() if name != "id")
        + ") PRIMARY KEY (id)"
        for table in TABLES
    ]
    return (*tables, f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')")


def bigquery_schema(table: str) -> str:
    """Return the DDL that makes a table as the consumer makes it, for a baseline that cannot."""
    columns = [f"{name} {kind}" for name, kind in COLUMNS.items()]
    columns += ["_millrace_sequence STRING", "_millrace_commit_timestamp TIMESTAMP"]
    return f"CREATE TABLE {table} ({', '.join(columns)}, PRIMARY KEY (id) NOT ENFORCED) CLUSTER BY id"


def row_values(key: int, number: int) -> Row:
    """Return the row that change ``number`` leaves under a key, as BigQuery's client returns it."""
    return {
        "id": key,
        "name": _NAMES[(key * 7 + number) % 64],
        "email": f"{_NAMES[number % 64]}.{key}@example.com",
        "amount": Decimal(f"{number % 100_000}.{number % 97 + 1:02d}"),
        "score": number / 8,
        "active": number % 2 == 0,
        "born": date(1950 + number % 60, 1 + number % 12, 1 + number % 28),
        "seen": _EPOCH + timedelta(seconds=number),
        "visits": number,
        "note": _NOTES[(number * 31 + key) % 256],
    }


def _row_text(key: int, number: int) -> str:
    """Return the columns outside the key as Spanner writes them."""
    row = row_values(key, number)
    return (
        f'{{"active":{"true" if row["active"] else "false"},"amount":"{row["amount"]}","born":"{row["born"]}",'
        f'"email":"{row["email"]}","name":"{row["name"]}","note":"{row["note"]}","score":{row["score"]!r},'
        f'"seen":"{row["seen"]:%Y-%m-%dT%H:%M:%SZ}","visits":"{number}"}}'
    )


def _small_row_text(_key: int, number: int) -> str:
    nothing = ",".join(f'"{name}":null' for name in COLUMNS if name not in ("id", "visits"))
    return f'{{{nothing},"visits":"{number}"}}'


_COLUMN_TYPES: Final = tuple(
    SpannerColumnType(name, f'{{"code":"{kind}"}}', name == "id", ordinal)
    for ordinal, (name, kind) in enumerate(COLUMNS.items(), start=1)
)


class Workload:
    """An endless row of change records, and what they leave behind."""

    def __init__(
        self,
        keys: int,
        seed: int,
        began: int = 1_700_000_000_000_000,
        tables: Sequence[str] = TABLES,
        *,
        small: bool = False,
    ) -> None:
        """Begin after an instant, in microseconds. ``small``: all columns but the key and one are NULL."""
        self._tables = tables
        self._text = _small_row_text if small else _row_text
        self._random = np.random.default_rng(seed)
        self._keys = keys
        weights = 1 / np.arange(1, keys + 1, dtype=float) ** ZIPF
        self._cumulated = np.cumsum(weights / weights.sum())
        self._number = 0
        self._instant = began  # of the latest transaction
        self.rows: dict[str, dict[int, int]] = {table: {} for table in tables}
        """By table and key, the number of the change that wrote the row last."""

    def records(self, changes: int, *, zipf: bool = False) -> Iterator[DataChangeRecord]:
        """Return records with so many changes in all, each a transaction of one table; keys are uniform or by Zipf."""
        waiting: defaultdict[str, list[int]] = defaultdict(list)
        for drawn in self._draw(changes, zipf):
            table = self._tables[drawn % len(self._tables)]
            waiting[table].append(int(drawn) // len(self._tables))
            if len(waiting[table]) == MODS:
                yield self._record(table, waiting.pop(table))
        for table, keys in waiting.items():
            yield self._record(table, keys)

    def _draw(self, changes: int, zipf: bool) -> npt.NDArray[np.int64]:
        if not zipf:
            return self._random.integers(0, self._keys, changes)
        found = np.searchsorted(self._cumulated, self._random.random(changes))
        return np.minimum(found, self._keys - 1)

    def _record(self, table: str, keys: Sequence[int]) -> DataChangeRecord:
        rows = self.rows[table]
        kind = "DELETE" if self._random.random() < DELETES else "UPDATE"
        mods = []
        for key in keys:
            self._number += 1
            mods.append(Mod(f'{{"id":"{key}"}}', None if kind == "DELETE" else self._text(key, self._number), None))
            if kind == "DELETE":
                rows.pop(key, None)
            else:
                rows[key] = self._number
        self._instant += 1_000
        return DataChangeRecord(
            commit_timestamp=Nanoseconds(self._instant * 1_000),
            record_sequence="00000000",
            server_transaction_id=f"NjQxNzk0MjI2{self._instant}",
            is_last_record_in_transaction_in_partition=True,
            table=table,
            column_types=_COLUMN_TYPES,
            mods=tuple(mods),
            mod_type=kind,
            value_capture_type="NEW_ROW",
            number_of_records_in_transaction=1,
            number_of_partitions_in_transaction=1,
        )


def change_maker(tables: Sequence[str] = TABLES) -> ChangeMaker:
    """Return the reader's own maker of changes, for the tables here."""
    return ChangeMaker(_SOURCE, 16, dict.fromkeys(tables, ("id",)))


def differences(expected: Mapping[int, int], found: Sequence[Row]) -> list[str]:
    """Compare a table's rows, every value of every row; return what differs, in words."""
    different = []
    by_key = {row["id"]: row for row in found}
    if len(by_key) != len(found):
        different.append(f"{len(found) - len(by_key)} rows are there twice")
    for key, number in expected.items():
        row = by_key.pop(key, None)
        wanted = row_values(key, number)
        if row is None:
            different.append(f"row {key} is missing")
        elif any(row[name] != value for name, value in wanted.items()):
            different.append(f"row {key} is of change {row['visits']}, not {number}")
    return different + [f"row {key} should be deleted" for key in by_key]
