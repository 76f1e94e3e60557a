"""From messages to typed columns, ready to append; every record that can never be applied is isolated as poison."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.parsing import Parsed, parse_changes
from services.cdc_consumer.core.poison import Poison, oldest_safe, poison_change
from services.cdc_consumer.core.sequence_array import are_sequences
from services.cdc_consumer.core.tables import (
    CHANGE_SEQUENCE_NUMBER,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_COLUMN,
    SEQUENCE_COLUMN,
    TableDefinition,
    row_schema,
    table_definition,
)
from services.cdc_consumer.core.types import NUMERIC, TIMESTAMP
from services.cdc_consumer.core.values import beyond_microseconds, holding_null, limit_of, normal_numerics, wire_values
from shared.contracts.change_batch import ChangeBatch, decode_batch
from shared.contracts.dead_letter import REPLAY_OF
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

MESSAGE: Final = "_millrace_message"
"""Book-keeping column: the row of the message table that a change came in."""
CHANGE: Final = "_millrace_change"
"""Book-keeping column: the change's index in its batch. No source column can be named so (the prefix is reserved)."""

_PARTIAL: Final = frozenset({"OLD_AND_NEW_VALUES", "NEW_VALUES"})
"""Value capture types whose updates are no full row image (Spanner, "Change streams overview")."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table and column list.

    ``rows`` holds the definition's columns in their wire types, then ``_CHANGE_TYPE`` and ``_CHANGE_SEQUENCE_NUMBER``
    (text), then the book-keeping columns `MESSAGE` and `CHANGE` (int32).
    """

    definition: TableDefinition
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a table of messages holds. Poison and rows together are every change of every message, each once."""

    tables: Sequence[TableChanges]
    poison: Sequence[Poison]
    batches: Mapping[int, ChangeBatch]
    """The decoded batch of each message that has one, to cut letters out of."""


def decode_messages(messages: pa.Table, now: Nanoseconds) -> Decoded:
    """Return the changes in a table of messages (`MESSAGE_SCHEMA`), column by column.

    A table without any change (a batch that only announces it) is there with no rows. ``now`` decides which upserts
    that are not from the stream, or come from it by a replay, are too old to be safe. MisconfiguredError if a message
    is of a newer format.
    """
    batches, poison = _envelopes(messages.column("data").to_pylist())
    groups, wrong = _groups(batches, _replayed(messages.column("attributes")))
    poison += wrong
    tables = []
    for group in groups:
        changes, refused = _decode_group(group, now)
        tables.append(changes)
        poison += refused
    poison.sort(key=lambda each: (each.message, -1 if each.change is None else each.change))
    return Decoded(tables, poison, batches)


def conform(rows: pa.Table, definition: TableDefinition) -> pa.Table:
    """Return rows in the columns of a wider definition of their table; what they lack is NULL.

    Book-keeping columns are left out. ValueError if another column of theirs is not the definition's, or of another
    type there: to leave it out would lose data.
    """
    schema = row_schema(definition)
    for column in rows.schema:
        if column.name in (MESSAGE, CHANGE):
            continue
        index = schema.get_field_index(column.name)
        if index < 0 or schema.field(index).type != column.type:
            raise ValueError(f"table {definition.name} has no column {column.name} of wire type {column.type}")
    columns = [
        rows.column(column.name) if column.name in rows.schema.names else pa.nulls(len(rows), column.type)
        for column in schema
    ]
    return pa.table(columns, schema=schema)


@dataclass(slots=True)
class _Group:
    """The messages of one table and column list."""

    definition: TableDefinition
    messages: list[int] = field(default_factory=list)
    batches: list[ChangeBatch] = field(default_factory=list)
    live: list[bool] = field(default_factory=list)
    """Of each batch, whether it is as the stream had it; otherwise it is a snapshot's or a replay's."""


def _replayed(attributes: pa.ChunkedArray) -> frozenset[int]:
    """Return the messages that bear the mark of a replay; looked for one by one only if there is any."""
    if not any(pc.any(pc.equal(chunk.keys, REPLAY_OF)).as_py() for chunk in attributes.chunks):
        return frozenset()
    return frozenset(index for index, each in enumerate(attributes.to_pylist()) if REPLAY_OF in dict(each or ()))


def _envelopes(data: Iterable[bytes | None]) -> tuple[dict[int, ChangeBatch], list[Poison]]:
    batches: dict[int, ChangeBatch] = {}
    poison: list[Poison] = []
    for index, each in enumerate(data):
        try:
            batches[index] = decode_batch(each or b"")
        except PoisonRecordError as error:
            poison.append(Poison(index, None, error.reason, error.detail))
    return batches, poison


def _groups(batches: Mapping[int, ChangeBatch], replayed: frozenset[int]) -> tuple[Sequence[_Group], list[Poison]]:
    """Group batches by table and column list; a header that is itself wrong poisons each of its changes alone."""
    groups: dict[TableDefinition, _Group] = {}
    by_header: dict[bytes, _Group | PoisonRecordError] = {}
    poison: list[Poison] = []
    for index, batch in batches.items():
        found = by_header.get(batch.header_text)
        if found is None:
            try:
                definition = table_definition(batch.header)
                found = groups.setdefault(definition, _Group(definition))
            except PoisonRecordError as error:
                found = error
            by_header[batch.header_text] = found
        if isinstance(found, _Group):
            found.messages.append(index)
            found.batches.append(batch)
            found.live.append(batch.header.origin == "stream" and index not in replayed)
        elif len(batch):
            poison += [poison_change(index, batch, n, found.reason, found.detail) for n in range(len(batch))]
        else:
            poison.append(Poison(index, None, found.reason, found.detail, table=batch.header.table))
    return list(groups.values()), poison


@dataclass(slots=True)
class _Refusals:
    """The changes of a group that cannot be applied; of several reasons the first found stays."""

    found: dict[int, tuple[Reason, str]] = field(default_factory=dict)

    def refuse(self, indices: Iterable[int], reason: Reason, detail: str) -> None:
        for index in indices:
            self.found.setdefault(index, (reason, detail))

    def refuse_where(self, mask: pa.BooleanArray, reason: Reason, detail: str) -> None:
        if pc.any(mask, min_count=0).as_py():
            self.refuse(np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist(), reason, detail)


def _decode_group(group: _Group, now: Nanoseconds) -> tuple[TableChanges, list[Poison]]:
    lengths = np.array([len(batch) for batch in group.batches], np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    message = np.repeat(np.array(group.messages, np.int32), lengths)
    change = (np.arange(lengths.sum()) - np.repeat(starts, lengths)).astype(np.int32)
    live = pa.array(np.repeat(np.array(group.live, np.bool_), lengths))
    op = _texts(batch.op for batch in group.batches)
    sequence = _texts(batch.sequence for batch in group.batches)
    commit, not_instants = wire_values(TIMESTAMP, _texts(batch.commit_timestamp for batch in group.batches))

    key = [column for column in group.definition.columns if column.name in group.definition.primary_key]
    rest = [column for column in group.definition.columns[:-2] if column not in key]
    parsed = parse_changes(
        list(chain.from_iterable(batch.keys for batch in group.batches)),
        list(chain.from_iterable(batch.rows for batch in group.batches)),
        key,
        rest,
    )

    refusals = _Refusals(dict(parsed.refused))
    _check_shape(refusals, op, parsed)
    refusals.refuse_where(
        pc.invert(are_sequences(sequence)),
        Reason.BAD_SEQUENCE,
        "not 1 to 4 sections of 1 to 16 hexadecimal digits, joined by '/'",
    )
    refusals.refuse(not_instants, Reason.BAD_CHANGE, f"commit timestamp: {limit_of(TIMESTAMP)}")
    refusals.refuse_where(
        too_old(live, op, commit, now),
        Reason.TOO_OLD_TO_BE_SAFE,
        "an upsert of a snapshot or a replay, older than deletes are remembered: it could bring a deleted row back",
    )
    _refuse_partial_images(refusals, group, lengths)
    columns = _typed(group.definition, parsed, refusals)
    columns |= {SEQUENCE_COLUMN: sequence, COMMIT_TIMESTAMP_COLUMN: commit}
    columns |= {CHANGE_TYPE: op, CHANGE_SEQUENCE_NUMBER: sequence}
    schema = row_schema(group.definition)
    rows = pa.table([columns[name] for name in schema.names], schema=schema)
    rows = rows.append_column(MESSAGE, pa.array(message)).append_column(CHANGE, pa.array(change))

    poison = []
    if refusals.found:
        batch_of = dict(zip(group.messages, group.batches, strict=True))
        for index, (reason, detail) in refusals.found.items():
            place = int(message[index])
            poison.append(poison_change(place, batch_of[place], int(change[index]), reason, detail))
        kept = np.ones(len(message), np.bool_)
        kept[list(refusals.found)] = False
        rows = rows.filter(pa.array(kept))
    return TableChanges(group.definition, rows), poison


def too_old(live: pa.Array, op: pa.Array, commit_micros: pa.Array, now: Nanoseconds) -> pa.BooleanArray:
    """Tell which changes are too old to be safe: upserts not live from the stream, older than deletes are remembered.

    A live change is exempt: what deleted its row later is still to come, or is applied again after it. A replay comes
    at any time, when that delete may have been applied and forgotten.
    """
    old = pc.less(commit_micros, oldest_safe(now))
    return pc.and_(pc.and_(old, pc.equal(op, "UPSERT")), pc.invert(live))


def _refuse_partial_images(refusals: _Refusals, group: _Group, lengths: npt.NDArray[np.int64]) -> None:
    """Refuse updates that carry only what has changed: an upsert of them would make every other column NULL."""
    captured = [batch.header.value_capture_type for batch in group.batches]
    if any(each in _PARTIAL for each in captured):
        partial = pa.array(np.repeat([each in _PARTIAL for each in captured], lengths))
        update = pc.equal(_texts(batch.mod_type for batch in group.batches), "UPDATE")
        detail = f"an update with the changed columns only (value capture type {' or '.join(sorted(_PARTIAL))})"
        refusals.refuse_where(pc.and_(partial, update), Reason.BAD_CHANGE, detail)


def _texts(lists: Iterable[Sequence[str]]) -> pa.StringArray:
    return pa.array(list(chain.from_iterable(lists)), pa.string())


def _check_shape(refusals: _Refusals, op: pa.StringArray, parsed: Parsed) -> None:
    upsert, delete = pc.equal(op, "UPSERT"), pc.equal(op, "DELETE")
    checks = (
        (pc.invert(pc.or_(upsert, delete)), "its operation is neither UPSERT nor DELETE"),
        (pc.invert(parsed.with_key), "its key is not a JSON object"),
        (pc.and_(upsert, pc.invert(parsed.with_row)), "an upsert without a row"),
        (pc.and_(delete, parsed.with_row), "a delete with a row"),
    )
    for mask, detail in checks:
        refusals.refuse_where(mask, Reason.BAD_CHANGE, detail)


def _typed(definition: TableDefinition, parsed: Parsed, refusals: _Refusals) -> dict[str, pa.Array]:
    """Return the source's columns in their wire types; what does not fit is refused."""
    typed = {}
    for column in definition.columns[:-2]:
        texts = parsed.columns[column.name]
        values, misfits = wire_values(column.type, texts)
        what = f"column {column.name} of type {column.type.googlesql}"
        if column.type.element is not None:
            of_null = f"{what}: an element is NULL, which a BigQuery array cannot hold"
            refusals.refuse(holding_null(texts), Reason.VALUE_DOES_NOT_FIT, of_null)
        if misfits:
            refusals.refuse(misfits, Reason.VALUE_DOES_NOT_FIT, f"{what}: {limit_of(column.type)}")
        if column.name in definition.primary_key:
            unfit = Reason.KEY_NOT_REPRESENTABLE
            refusals.refuse_where(texts.is_null(), unfit, f"key {what}: NULL, which a BigQuery key cannot hold")
            if column.type == TIMESTAMP:
                beyond = beyond_microseconds(texts)
                refusals.refuse_where(beyond, unfit, f"key {what}: digits beyond the microsecond would be cut")
            if column.type == NUMERIC:
                values = normal_numerics(values)
        typed[column.name] = values
    return typed
