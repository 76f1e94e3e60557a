"""The Tables port in memory: table definitions by their identity."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from services.cdc_consumer.core.schema.tables import COLUMN_LIMIT, TableColumn, TableDefinition, beside, with_names
from services.cdc_consumer.ports import (
    LEFT_OUT,
    MASKS_CHANGED,
    ROWS_TOO_OLD,
    DatasetRefusedError,
    NotLabelledError,
    TableTroubleError,
    UnansweredError,
)
from shared.contracts.errors import PoisonRecordError, TransientError
from shared.contracts.reasons import Reason
from tests.fakes.effects import Effects

_HOUR: Final = 3_600_000_000


class FakeTables:
    """Keeps the promises of `DestinationTables`. ``unavailable`` calls fail first.

    Tables in ``forbidden`` cannot be made or altered.
    """

    def __init__(self, effects: Effects | None = None) -> None:
        self.effects = effects or Effects()
        self.there: dict[str, TableDefinition] = {}
        self.unavailable = 0
        self.forbidden: set[str] = set()
        self.dataset_refused = False
        """Whether the usual dataset and all its tables are refused, to appends too."""
        self.unwritable: set[str] = set()
        """Tables that may be read, but to which this identity may not write."""
        self.interrupted: Callable[[str], bool] = lambda _table: False
        """Asked at each call for a table; one of which it is true is a TransientError."""
        self.unanswered = False
        """Whether such a call was given no answer."""
        self.made_at: dict[str, int] = {}
        self.complete_since: dict[str, int] = {}
        self.dead_letters: dict[str, int] = {}
        """Until when changes have become dead letters, by mirror."""
        self.pending_resync: dict[str, str] = {}
        """Why, by mirror."""
        self.resync_after: dict[str, int] = {}
        """The end of the hour in which the latest of the snapshot rows was read that a mirror lacks."""
        self.unlabelled: set[str] = set()
        """Tables whose labels may not be written."""
        self.masks: dict[str, str] = {}
        """How tables say that their columns are masked and named."""
        self.now = 0
        """In microseconds: when masks are changed."""
        self.asked_ahead_for: list[Sequence[str]] = []
        self._known: dict[str, TableDefinition] = {}

    def asked_ahead(self, definitions: Iterable[TableDefinition]) -> AbstractContextManager[None]:
        self.asked_ahead_for.append([each.identity for each in definitions])
        return nullcontext()

    def ensure(self, definition: TableDefinition) -> TableDefinition:
        name = definition.identity
        known = self._known.get(name)
        if known is None or self._missing(known, self._placed(definition, known)):
            known = self._known[name] = self._brought_about(definition)
        self._check(known, self._placed(definition, known))
        return known

    def complete(self, definition: TableDefinition, since: int, read_since: int) -> None:
        name = definition.identity
        self._fail_if_planned(name)
        after = max(self.made_at.get(name, 0), self.resync_after.get(name, 0))
        if min(since, read_since) > after and since > self.complete_since.get(name, 0):
            self.effects.note(f"complete {name}")
            self.complete_since[name] = since
            if self.pending_resync.get(name) in (ROWS_TOO_OLD, MASKS_CHANGED):
                del self.pending_resync[name]

    def note_dead_letters(self, name: str, dataset: str, at: int) -> None:
        identity = f"{dataset}.{name}" if dataset else name
        self._fail_if_planned(identity)
        found = self.there.get(identity)
        if found is not None and not found.append_only and at > self.dead_letters.get(identity, 0):
            if name in self.unlabelled:
                raise NotLabelledError(f"table {name}: its labels may not be written")
            self.effects.note(f"note dead letters of {identity}")
            self.dead_letters[identity] = at

    def set_pending_resync(self, definition: TableDefinition, newest: int) -> None:
        name = definition.identity
        if self.complete_since.get(name, 0) > newest:
            return
        self._fail_if_planned(name)
        if name in self.unlabelled:
            raise NotLabelledError(f"table {name}: its labels may not be written")
        self.effects.note(f"pending resync of {name}")
        self.pending_resync.setdefault(name, ROWS_TOO_OLD)
        self.resync_after[name] = max(-(-newest // _HOUR) * _HOUR, self.resync_after.get(name, 0))
        self.complete_since.pop(name, None)

    def forget(self, table: str) -> None:
        self._known.pop(table, None)

    def check_rights(self, definition: TableDefinition) -> None:
        usual = {definition.identity, *(name for name in self.there if "." not in name)}
        if not definition.dataset and (self.dataset_refused or usual <= self.unwritable):
            raise DatasetRefusedError("no table of the dataset may be written; give this identity a role on it")

    def _brought_about(self, definition: TableDefinition) -> TableDefinition:
        name = definition.identity
        if self.dataset_refused and not definition.dataset:
            raise DatasetRefusedError("the dataset may not be read; give this identity a role on it")
        self._fail_if_planned(name)
        found = self.there.get(name)
        if found is None:
            self.effects.note(f"create {name}")
            self.there[name] = definition
        else:
            definition = self._placed(definition, found)
            self._check(found, definition)
            there = _upper([column.name for column in found.columns])
            wanted = _upper([column.name for column in definition.columns])
            changed = definition.masked_columns.changed(there, self.masks.get(name, ""), wanted)
            if changed and not definition.append_only:
                self.effects.note(f"masks of {name} changed")
                self.pending_resync.setdefault(name, MASKS_CHANGED)
                self.resync_after[name] = max(self.now, self.resync_after.get(name, 0))
                self.complete_since.pop(name, None)
            if len(found.columns) + len(self._missing(found, definition)) > COLUMN_LIMIT:
                raise PoisonRecordError(Reason.TOO_MANY_COLUMNS, f"table {name}")
            if definition.keep not in (None, found.keep):
                self.effects.note(f"set keep of {name}")
                found = self.there[name] = replace(found, keep=definition.keep)
            if definition.max_staleness not in (None, found.max_staleness):
                self.effects.note(f"set staleness of {name}")
                found = self.there[name] = replace(found, max_staleness=definition.max_staleness)
            missing = self._missing(found, definition)
            if missing:
                self.effects.note(f"widen {name}")
                self.there[name] = replace(found, columns=(*found.columns, *missing))
        self.masks[name] = definition.masked_columns.label(_upper([column.name for column in self.there[name].columns]))
        self._leave_out(definition)
        return self.there[name]

    def _leave_out(self, definition: TableDefinition) -> None:
        mirror = replace(definition, name=definition.instead_of).identity
        found = self.there.get(mirror) if definition.instead_of else None
        if found is not None and found.mirror_of == definition.mirror_of and not found.append_only:
            self._fail_if_planned(mirror)
            self.effects.note(f"leave out {mirror}")
            self.pending_resync[mirror] = LEFT_OUT
            self.complete_since.pop(mirror, None)

    def _fail_if_planned(self, name: str) -> None:
        if self.unavailable or self.interrupted(name):
            self.unavailable = max(0, self.unavailable - 1)
            raise UnansweredError("no answer") if self.unanswered else TransientError("BigQuery is unavailable")
        if name in self.forbidden:
            raise TableTroubleError(f"table {name}: permission denied")

    @staticmethod
    def _placed(wanted: TableDefinition, seen: TableDefinition) -> TableDefinition:
        return with_names(wanted, beside(wanted, seen))

    @staticmethod
    def _missing(seen: TableDefinition, wanted: TableDefinition) -> tuple[TableColumn, ...]:
        names = {column.name.upper() for column in seen.columns}
        return tuple(column for column in wanted.columns if column.name.upper() not in names)

    @staticmethod
    def _check(seen: TableDefinition, wanted: TableDefinition) -> None:
        types = {column.name.upper(): column.type.bigquery for column in seen.columns}
        if (seen.mirror_of, seen.append_only) != (wanted.mirror_of, wanted.append_only):
            raise TableTroubleError(f"table {wanted.name} holds another source table")
        if not seen.primary_key:
            raise TableTroubleError(f"table {wanted.name} has no primary key")
        if _upper(seen.primary_key) != _upper(wanted.primary_key) or any(
            types.get(column.name.upper(), column.type.bigquery) != column.type.bigquery for column in wanted.columns
        ):
            raise PoisonRecordError(Reason.SCHEMA_CONFLICT, f"table {wanted.name} has another key or type")


def _upper(names: Sequence[str]) -> set[str]:
    return {name.upper() for name in names}
