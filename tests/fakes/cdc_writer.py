"""The CdcWriter port in memory: applies upserts and deletes by change sequence number, as BigQuery does."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Protocol

import pyarrow as pa

from services.cdc_consumer.core.schema.tables import CHANGE_SEQUENCE_NUMBER, CHANGE_TYPE, TableDefinition
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE
from services.cdc_consumer.ports import Heard, RowError, TableTroubleError
from shared.contracts.change_sequence import ChangeSequenceNumber, parse_sequence
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from tests.fakes.effects import Effects
from tests.fakes.tables import FakeTables

Key = tuple[object, ...]

NEVER: Final = timedelta.max
_SILENT_FOR: Final = timedelta(seconds=120)
"""After how long without an answer an append fails: two connections, each of which is given up after a minute."""


class Time(Protocol):
    """How much time has passed, in nanoseconds, and a way to let it pass."""

    passed: int

    def pass_time(self, time: timedelta) -> None:
        """Let so much time pass."""


class _OwnTime:
    passed = 0

    def pass_time(self, time: timedelta) -> None:
        self.passed += time // timedelta(microseconds=1) * 1_000


class FakeCdcWriter:
    """Writes into the tables of a `FakeTables`, which may be away, in trouble, or refuse rows."""

    def __init__(self, tables: FakeTables, effects: Effects | None = None) -> None:
        self.tables = tables
        self.effects = effects or Effects()
        self.unavailable = 0
        """So many more answers are TransientError."""
        self.invisible: dict[str, int] = {}
        """Columns that appends do not see yet: so many more appends that have one are TableTroubleError."""
        self.failing: set[str] = set()
        """Tables every append to which is a TransientError."""
        self.missing: set[str] = set()
        """Tables that appends do not find, though they have been made."""
        self.interrupted: Callable[[str], bool] = lambda _table: False
        """Asked at each append to a table; one of which it is true is a TransientError."""
        self.stuck: Callable[[str, Mapping[str, Any]], bool] = lambda _table, _row: False
        """Appends that hold such a row are a TransientError."""
        self.refuses: Callable[[str, Mapping[str, Any]], bool] = lambda _table, _row: False
        self.answers_after: dict[str, timedelta] = {}
        """How long it takes until an append to a table is answered, and its rows are applied; perhaps `NEVER`."""
        self.answers_in_parts: set[str] = set()
        """Tables of which some rows are answered all that time."""
        self.clock: Time = _OwnTime()
        """What goes on while an answer is waited for."""
        self.late: list[FakeAppending] = []
        """Appends that were not answered at once."""
        self.largest_row = 9_000_000
        self.rows_sent = 0
        self.appended: dict[str, list[Mapping[str, Any]]] = {}
        """The rows of histories, in the order in which they came."""
        self._applied: dict[str, dict[Key, tuple[ChangeSequenceNumber, Mapping[str, Any] | None]]] = {}

    def append(self, definition: TableDefinition, rows: pa.Table) -> "FakeAppending":
        return FakeAppending(
            self, definition, rows.drop_columns([n for n in (MESSAGE, CHANGE) if n in rows.schema.names])
        )

    def answer_late(self) -> None:
        """Answer all that was not answered at once, whether that is still waited for or not."""
        for appending in self.late:
            with suppress(TransientError):
                appending.answer()
        self.late.clear()

    def rows(self, table: str) -> Mapping[Key, Mapping[str, Any]]:
        """Return what a query sees: the rows of a mirror by their key."""
        return {key: row for key, (_, row) in self._applied.get(table, {}).items() if row is not None}

    def applied(self, table: str, key: Key) -> ChangeSequenceNumber | None:
        """Return the change sequence number that a key of a mirror has, deleted or not; None: it has none."""
        found = self._applied.get(table, {}).get(key)
        return None if found is None else found[0]

    def apply(self, definition: TableDefinition, row: Mapping[str, Any]) -> None:
        if definition.append_only:
            self.appended.setdefault(definition.identity, []).append(row)
            return
        values = dict(row)
        deleted = values.pop(CHANGE_TYPE) == "DELETE"
        sequence = parse_sequence(values.pop(CHANGE_SEQUENCE_NUMBER))
        key = tuple(values[name] for name in definition.primary_key)
        rows = self._applied.setdefault(definition.identity, {})
        if key not in rows or rows[key][0] <= sequence:
            rows[key] = (sequence, None if deleted else values)


def _time(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=nanoseconds // 1_000)


class FakeAppending:
    def __init__(self, writer: FakeCdcWriter, definition: TableDefinition, rows: pa.Table) -> None:
        self._writer = writer
        self._definition = definition
        self._rows = rows.to_pylist()
        self._errors: Sequence[RowError] | None = None
        self._send()
        if self._answered_after:
            writer.late.append(self)

    @property
    def table(self) -> str:
        """Return the identity of the table that is written to."""
        return self._definition.identity

    def _send(self) -> None:
        self._sent_at = self._gave_up_at = self._writer.clock.passed
        self._answered_after = self._writer.answers_after.get(self._definition.identity, timedelta(0))

    def hear(self, within: timedelta) -> Heard:
        table, clock = self._definition.identity, self._writer.clock
        left = max(timedelta(0), self._answered_after - _time(clock.passed - self._sent_at))
        if self._errors is None and left > within:
            clock.pass_time(within)
            if table in self._writer.answers_in_parts:
                return Heard.SOME
            if _time(clock.passed - self._gave_up_at) >= _SILENT_FOR:
                self._gave_up_at = clock.passed
                raise TransientError(f"table {table}: the connection ended before BigQuery had answered")
            return Heard.NOTHING
        if self._errors is None:
            clock.pass_time(left)
            try:
                self.answer()
            except TransientError:
                self._send()  # once more, at the next call
                raise
        return Heard.ALL

    def refused(self) -> Sequence[RowError]:
        while self._errors is None:
            self.hear(_SILENT_FOR)
        return self._errors

    def leave(self) -> None:
        """Do nothing: what was sent may still be applied, by `FakeCdcWriter.answer_late`."""

    def answer(self) -> None:
        if self._errors is None:
            self._errors = self._append()

    def _append(self) -> Sequence[RowError]:
        writer, table = self._writer, self._definition.identity
        if writer.unavailable:
            writer.unavailable -= 1
            raise TransientError("BigQuery is unavailable")
        if writer.interrupted(table) or table in writer.failing or any(writer.stuck(table, row) for row in self._rows):
            raise TransientError(f"table {table}: INTERNAL")
        if table in writer.tables.unwritable or (writer.tables.dataset_refused and not self._definition.dataset):
            raise TableTroubleError(f"table {table}: PERMISSION_DENIED", code="PERMISSION_DENIED", denied=True)
        there = writer.tables.there.get(table)
        if there is None or table in writer.missing:
            raise TableTroubleError(f"table {table} not found")
        kinds = {column.name.upper(): column.type.bigquery for column in there.columns}
        for column in self._definition.columns:
            if kinds.get(column.name.upper()) != column.type.bigquery:
                raise TableTroubleError(f"table {table}: no column {column.name} of type {column.type.bigquery}")
            left = writer.invisible.get(column.name, 0)
            if left:
                writer.invisible[column.name] = left - 1
                raise TableTroubleError(f"table {table}: no column {column.name} yet")
        errors = [error for index, row in enumerate(self._rows) if (error := self._error(index, row))]
        bad = {error.index for error in errors}
        good = [row for index, row in enumerate(self._rows) if index not in bad]
        if good:
            writer.effects.note(f"append {len(good)} rows to {table}")
        for row in good:
            writer.apply(self._definition, row)
        writer.rows_sent += len(good)
        return errors

    def _error(self, index: int, row: Mapping[str, Any]) -> RowError | None:
        size = sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        if size > self._writer.largest_row:
            return RowError(index, Reason.TOO_LARGE, f"{size} bytes")
        if self._definition.append_only:
            refused = self._writer.refuses(self._definition.identity, row)
            return RowError(index, Reason.REFUSED_BY_BIGQUERY, "refused by the test") if refused else None
        if row[CHANGE_TYPE] not in ("UPSERT", "DELETE"):
            return RowError(index, Reason.REFUSED_BY_BIGQUERY, "The given value is not a valid CHANGE_TYPE")
        try:
            parse_sequence(row[CHANGE_SEQUENCE_NUMBER])
        except ValueError:
            return RowError(index, Reason.REFUSED_BY_BIGQUERY, "not a change sequence number")
        if self._writer.refuses(self._definition.identity, row):
            return RowError(index, Reason.REFUSED_BY_BIGQUERY, "refused by the test")
        return None
