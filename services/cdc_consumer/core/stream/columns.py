"""From messages to typed columns, ready to append; every record that can never be applied is isolated as poison."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain, pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.schema.destinations import EVERYTHING, Destinations, Plan, destinations, identity_of
from services.cdc_consumer.core.schema.entries import entry_columns
from services.cdc_consumer.core.schema.history import history_columns
from services.cdc_consumer.core.schema.tables import (
    CHANGE_SEQUENCE_NUMBER,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_COLUMN,
    DELETED_COLUMN,
    TableColumn,
    TableDefinition,
    beside,
    row_schema,
    with_names,
)
from services.cdc_consumer.core.snapshot.snapshot_ends import End, ends_of_snapshots
from services.cdc_consumer.core.stream.newest import newest_of
from services.cdc_consumer.core.stream.parsing import Parsed, parse_objects
from services.cdc_consumer.core.stream.poison import Poison, poison_change
from services.cdc_consumer.core.types.arrays import json_arrays
from services.cdc_consumer.core.types.masks import rewritten
from services.cdc_consumer.core.types.sequence_array import are_sequences, first_sections
from services.cdc_consumer.core.types.types import FLOAT32, JSON, NUMERIC, PG_JSONB, TIMESTAMP, UUID, array_of
from services.cdc_consumer.core.types.values import (
    LAST_MICROSECOND,
    beyond_microseconds,
    holding_null,
    limit_of,
    normal_numerics,
    wire_values,
)
from shared.contracts.change_batch import ChangeBatch, Content, Header, NewerFormatError, decode_batch
from shared.contracts.dead_letter import REPLAY_FORCED, REPLAY_OF
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import SEQUENCE_COLUMN
from shared.contracts.reasons import Reason
from shared.contracts.safe_age import MOST_AHEAD, OLDEST_PUBLISHED, SAFE_MICROSECONDS, oldest_safe
from shared.contracts.timestamps import Nanoseconds

MESSAGE: Final = "_millrace_message"
"""Book-keeping column: the row of the message table that a change came in."""
CHANGE: Final = "_millrace_change"
"""Book-keeping column: the change's index in its batch. No source column can be named so (the prefix is reserved)."""

Places = npt.NDArray[np.int64]
"""Indices of some of the changes of a group."""

_ROUNDS: Final = 4
"""How often rows are chosen to be parsed, where the newest of a key does not fit; all that are left in the last."""
_NULL: Final = b"null"
_LONGEST_SOURCE: Final = 500  # characters
_MAY_WAIT: Final = timedelta(hours=1) // timedelta(microseconds=1)
"""How much older than `SAFE_AGE` a row may become while it waits: half of the margin that `SAFE_AGE` has."""
_AHEAD: Final = MOST_AHEAD // timedelta(microseconds=1)
_NO_BOUND: Final = -(1 << 62)
_BEHIND: Final = OLDEST_PUBLISHED // timedelta(microseconds=1)
_IS_AHEAD: Final = "a time more than a day after its message was published, or after the year 9999"
_PARTIAL: Final = frozenset({"OLD_AND_NEW_VALUES", "NEW_VALUES"})
"""Value capture types whose updates are no full row image (Spanner, "Change streams overview")."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """Changes of a column list that newer ones of their rows supersede, and whose rows have not been parsed."""

    count: int
    parse: Callable[[], tuple[pa.Table, Sequence[Poison]]]
    """Return them as rows, and those that can never be applied."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table and column list.

    ``rows`` holds the definition's columns in their wire types, then its pseudo-columns (text), then the book-keeping
    columns `MESSAGE` and `CHANGE` (int32).
    """

    definition: TableDefinition
    rows: pa.Table
    messages: Sequence[int] = ()
    """The messages of this table and column list, those without any change among them."""
    end: End | None = None
    """Of a snapshot; None: nothing is said of any."""
    outdated: int | None = None
    """The latest commit, in microseconds, of the rows of a snapshot that are not here because they are too old to be
    applied; the mirror lacks them until a snapshot of later is complete. None: there are no such rows."""
    superseded: Superseded | None = None
    """Further changes, older than the rows of their keys; None if there are none."""
    write_before: Nanoseconds | None = None
    """Until when they may be written: later, an upsert of a snapshot or replay among them is too old. None: always."""


def with_superseded(changes: TableChanges) -> tuple[TableChanges, Sequence[Poison]]:
    """Return changes with the superseded behind the others, and those of them that can never be applied."""
    if changes.superseded is None:
        return changes, ()
    rows, poison = changes.superseded.parse()
    return replace(changes, rows=pa.concat_tables([changes.rows, rows]), superseded=None), poison


class WaitingMessage(NamedTuple):
    """Why a message waits until an operator acts: a newer wire format, or a tables file that its table does not fit."""

    source: str
    table: str
    why: MisconfiguredError


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a table of messages holds.

    Of a change that is not left out there is either poison, once, or a row in each table that it goes to.
    """

    tables: Sequence[TableChanges]
    poison: Sequence[Poison]
    batches: Mapping[int, ChangeBatch]
    """The decoded batch of each message that has one, to cut dead letters out of."""
    unfit: Mapping[str, PoisonRecordError] = field(default_factory=dict)
    """Tables, by identity, that a header asks for and that BigQuery could not hold, and why."""
    left_out: Mapping[tuple[str, Content], int] = field(default_factory=dict)
    """How many changes came of source tables of which the tables file leaves such changes out."""
    unknown: Collection[tuple[str, str]] = frozenset()
    """Source tables, and columns that the tables file names for them and that they do not have."""
    of_unknown_type: Collection[tuple[str, str, str]] = frozenset()
    """Source tables, columns that are written as text because their type is not known, and that type."""
    history_only: Collection[tuple[str, str]] = frozenset()
    """Source tables of which a history alone is kept because no BigQuery key holds theirs, and why."""
    late_ends: Collection[tuple[str, str]] = ()
    """Source tables, and times (RFC 3339) that came too late as the ends of snapshots."""
    outdated: Mapping[int, int] = field(default_factory=dict)
    """Of each message, how many rows of a snapshot it holds that are too old to be applied: they need no dead letter
    each, for another snapshot has them all. `TableChanges.outdated` says so of their table."""
    waiting: Mapping[int, WaitingMessage] = field(default_factory=dict)
    """The messages that nothing is wrong with, and that cannot be applied as this consumer is set up."""
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    """Sources, and the time up to which each has published all its changes, in microseconds; no table gets them."""


def decode_messages(
    messages: pa.Table, now: Nanoseconds, plan: Plan = EVERYTHING, *, newest_only: bool = False
) -> Decoded:
    """Return the changes in a table of messages (`MESSAGE_SCHEMA`), column by column, for the tables of a plan.

    A table without any change (a batch that only announces it) is there with no rows. ``now`` decides which upserts
    that are not from the stream, or come from it by a replay, are too old to be safe; none is of a replay whose sender
    has accepted that.

    ``newest_only``: of a mirror without a history only the rows are parsed that are newest of their keys; what others
    hold is not known then (`TableChanges.superseded`), and no poison.
    """
    batches, poison, waiting = _envelopes(_views(messages.column("data")))
    replayed, forced = _replayed(messages.column("attributes"))
    published = messages.column("publish_time").cast(pa.int64()).to_pylist()
    heartbeats = _heartbeats(batches, published)
    late = replayed | _published_late(batches, published)
    grouped = _grouped(batches, _Provenance(replayed, late, forced, published), plan)
    waiting |= grouped.waiting
    for index in grouped.waiting:
        del batches[index]
    ends = ends_of_snapshots({n: batch for n, batch in batches.items() if n not in replayed}, messages, now)
    poison += grouped.poison
    poison += [
        Poison(index, None, Reason.BAD_SEQUENCE, f"complete_since is {_IS_AHEAD}", table=batches[index].header.table)
        for index in ends.forged
    ]
    for group in grouped.groups:
        group.end = max((ends.believed[each] for each in group.messages if each in ends.believed), default=None)
    tables, refused, outdated = _decode_groups(grouped.groups, now, newest_only=newest_only)
    poison += refused
    poison.sort(key=lambda each: (each.message, -1 if each.change is None else each.change))
    unknown = {(g.destinations.header.table, name) for g in grouped.groups for name in g.destinations.unknown}
    of_unknown_type = {
        (g.destinations.header.table, *each) for g in grouped.groups for each in g.destinations.of_unknown_type
    }
    return Decoded(
        tables,
        poison,
        batches,
        grouped.unfit,
        grouped.left_out,
        unknown,
        of_unknown_type,
        {(g.destinations.header.table, g.destinations.unfit_key) for g in grouped.groups if g.destinations.unfit_key},
        ends.late,
        outdated,
        waiting,
        heartbeats,
    )


def in_table(changes: TableChanges, there: TableDefinition) -> tuple[TableDefinition, pa.Table]:
    """Return the definition and the rows of changes with the names that their columns have in the table (`beside`)."""
    names = beside(changes.definition, there)
    if not names:
        return changes.definition, changes.rows
    renamed = changes.rows.rename_columns([names.get(name, name) for name in changes.rows.schema.names])
    return with_names(changes.definition, names), renamed


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


def newest_rows(rows: pa.Table, primary_key: Sequence[str], candidates: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which rows are the newest of their key among the candidates (`newest_of`)."""
    arrival = [rows.column(MESSAGE), rows.column(CHANGE)]
    return newest_of(
        [rows.column(name) for name in primary_key], rows.column(CHANGE_SEQUENCE_NUMBER), arrival, candidates
    )


@dataclass(slots=True)
class _Group:
    """The messages of one source table and column list."""

    destinations: Destinations
    messages: list[int] = field(default_factory=list)
    batches: list[ChangeBatch] = field(default_factory=list)
    live: list[bool] = field(default_factory=list)
    """Of each batch, whether it is as the stream had it; otherwise it is a snapshot's, a replay's, or published late.

    A forced replay counts as live: who sent it answers for what it may bring back.
    """
    snapshot: list[bool] = field(default_factory=list)
    """Of each batch, whether its rows are a snapshot's, as it was published."""
    latest: list[int] = field(default_factory=list)
    """Of each batch, the latest time, in microseconds, that its changes can have."""
    oldest: list[int] = field(default_factory=list)
    """Of each batch, the oldest time, in microseconds, that rows of a snapshot can have in it."""
    end: End | None = None


class _Provenance(NamedTuple):
    """What is known of messages beside what they hold."""

    replayed: frozenset[int]
    late: frozenset[int]
    """Those that are not live, though they are from a stream."""
    forced: frozenset[int]
    published: Sequence[int | None]

    def latest(self, message: int, header: Header) -> int:
        """Return the latest time, in microseconds, that changes in a message can have.

        The versions of images may run ahead of all clocks. What no one has published, a test's message, has no bound.
        """
        published = self.published[message]
        if published is None or header.content == "images":
            return LAST_MICROSECOND
        return min(published + _AHEAD, LAST_MICROSECOND)

    def oldest(self, message: int) -> int:
        """Return the oldest time, in microseconds, of a snapshot's rows in a message (`OLDEST_PUBLISHED`)."""
        published = self.published[message]
        return _NO_BOUND if published is None else published - _BEHIND


def _replayed(attributes: pa.ChunkedArray) -> tuple[frozenset[int], frozenset[int]]:
    """Return the messages that bear the mark of a replay, and which of them that of a forced one.

    They are searched for one by one only if there is any.
    """
    if not any(pc.any(pc.equal(chunk.keys, REPLAY_OF)).as_py() for chunk in attributes.chunks):
        return frozenset(), frozenset()
    by_index = {index: dict(each or ()) for index, each in enumerate(attributes.to_pylist())}
    replayed = frozenset(index for index, each in by_index.items() if REPLAY_OF in each)
    return replayed, frozenset(index for index in replayed if REPLAY_FORCED in by_index[index])


def _heartbeats(batches: dict[int, ChangeBatch], published: Sequence[int | None]) -> Mapping[str, int]:
    """Take the heartbeats out of the batches; return the newest of each source that is not ahead of its publication."""
    newest: dict[str, int] = {}
    for index, batch in list(batches.items()):
        until = batch.header.published_until
        if isinstance(until, int) and not len(batch):
            del batches[index]
            at, source = published[index], batch.header.source
            if len(source) <= _LONGEST_SOURCE and until <= (LAST_MICROSECOND if at is None else at + _AHEAD):
                newest[source] = max(until, newest.get(source, 0))
    return newest


def _published_late(batches: Mapping[int, ChangeBatch], published: Sequence[int | None]) -> frozenset[int]:
    """Return the messages with an image whose version is from long before it was published.

    Who sends such a one could not publish meanwhile, and what another has read since may be applied already: a delete
    too, that is forgotten by now. The texts of versions sort as the versions do.
    """
    images = [index for index, batch in batches.items() if batch.header.content == "images" and batch.sequence]
    if not images:
        return frozenset()
    return frozenset(
        index
        for index in images
        if (at := published[index]) is not None
        and min(batches[index].sequence) < f"{max(0, at - SAFE_MICROSECONDS):016X}"
    )


def _views(column: pa.ChunkedArray) -> Iterator[memoryview]:
    """Yield binary values where they are, without a copy: what is decoded of a message refers to its data."""
    for chunk in column.chunks:
        _there, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
        whole = memoryview(data or b"")
        yield from (whole[start:end] for start, end in pairwise(ends))


def _envelopes(data: Iterable[memoryview]) -> tuple[dict[int, ChangeBatch], list[Poison], dict[int, WaitingMessage]]:
    batches: dict[int, ChangeBatch] = {}
    waiting: dict[int, WaitingMessage] = {}
    poison: list[Poison] = []
    for index, each in enumerate(data):
        try:
            batches[index] = decode_batch(each)
        except PoisonRecordError as error:
            poison.append(Poison(index, None, error.reason, error.detail))
        except NewerFormatError as error:
            waiting[index] = WaitingMessage(error.source, error.table, error)
    return batches, poison, waiting


@dataclass(slots=True)
class _Grouped:
    groups: Sequence[_Group] = ()
    poison: list[Poison] = field(default_factory=list)
    unfit: dict[str, PoisonRecordError] = field(default_factory=dict)
    left_out: Counter[tuple[str, Content]] = field(default_factory=Counter)
    waiting: dict[int, WaitingMessage] = field(default_factory=dict)


def _grouped(batches: Mapping[int, ChangeBatch], provenance: _Provenance, plan: Plan) -> _Grouped:
    """Group batches by table and column list; a header that is itself wrong poisons each of its changes alone."""
    groups: dict[Destinations, _Group] = {}
    by_header: dict[bytes, _Group | PoisonRecordError | MisconfiguredError | None] = {}
    found = _Grouped()
    for index, batch in batches.items():
        if batch.header_text not in by_header:
            by_header[batch.header_text] = _group_of(batch.header, plan, groups)
        match by_header[batch.header_text]:
            case None:
                found.left_out[batch.header.table, batch.header.content] += len(batch)
            case PoisonRecordError() as error:
                found.unfit[identity_of(batch.header, plan)] = error
                of_all = [poison_change(index, batch, n, error.reason, error.detail) for n in range(len(batch))]
                found.poison += of_all or [Poison(index, None, error.reason, error.detail, table=batch.header.table)]
            case MisconfiguredError() as error:  # of this table: it stops no other
                found.waiting[index] = WaitingMessage(batch.header.source, batch.header.table, error)
            case _Group() as group:
                group.messages.append(index)
                group.batches.append(batch)
                from_stream = batch.header.origin == "stream" and index not in provenance.late
                group.live.append(index in provenance.forced or from_stream)
                group.snapshot.append(batch.header.origin == "snapshot" and index not in provenance.replayed)
                group.latest.append(provenance.latest(index, batch.header))
                group.oldest.append(provenance.oldest(index))
    found.groups = list(groups.values())
    return found


def _group_of(
    header: Header, plan: Plan, groups: dict[Destinations, _Group]
) -> _Group | PoisonRecordError | MisconfiguredError | None:
    try:
        wanted = destinations(header, plan)
    except (PoisonRecordError, MisconfiguredError) as error:
        return error
    return None if wanted is None else groups.setdefault(wanted, _Group(wanted))


@dataclass(slots=True)
class _Refusals:
    """The changes of a group that cannot be applied; of several reasons the first found stays."""

    found: dict[int, tuple[Reason, str]] = field(default_factory=dict)
    places: Places | None = None
    """Which changes of the group those are that are refused by their index; None: all of them."""

    def of(self, places: Places | None) -> "_Refusals":
        """Return the same refusals, to add to by the index in some changes."""
        return _Refusals(self.found, places)

    def refuse(self, indices: Iterable[int], reason: Reason, detail: str) -> None:
        for index in indices:
            self.found.setdefault(index if self.places is None else int(self.places[index]), (reason, detail))

    def refuse_where(self, mask: pa.BooleanArray, reason: Reason, detail: str) -> None:
        if pc.any(mask, min_count=0).as_py():
            self.refuse(np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist(), reason, detail)


@dataclass(slots=True)
class _Changes:
    """The changes of a group. Their keys are parsed, their rows are still JSON text."""

    group: _Group
    message: npt.NDArray[np.int32]
    change: npt.NDArray[np.int32]
    op: pa.StringArray
    sequence: pa.StringArray
    commit: pa.Array
    keys: Mapping[str, pa.Array]
    """The key columns in their wire types."""
    rows: Sequence[msgspec.Raw]
    last_values: pa.BooleanArray | None
    """Which of the rows are a deleted row's last values; None if none is."""
    outdated: npt.NDArray[np.bool_]
    refusals: _Refusals
    write_before: Nanoseconds | None = None

    def candidates(self) -> npt.NDArray[np.bool_]:
        """Return which changes may be written, as far as is known."""
        return ~(self.outdated | _mask(len(self.outdated), self.refusals.found))

    def to_compare(self) -> pa.Table:
        """Return what decides which change of a row is the newest."""
        ours = {CHANGE_SEQUENCE_NUMBER: self.sequence, MESSAGE: self.message, CHANGE: self.change}
        return pa.table({name: self.keys[name] for name in self.group.destinations.header.primary_key} | ours)

    def poison(self, changes: Iterable[int]) -> list[Poison]:
        """Return those of the changes that were refused, and why."""
        found, batches = [], None
        for index in changes:
            if index in self.refusals.found:
                batches = batches or dict(zip(self.group.messages, self.group.batches, strict=True))
                place = int(self.message[index])
                found.append(poison_change(place, batches[place], int(self.change[index]), *self.refusals.found[index]))
        return found


def _decode_groups(
    groups: Sequence[_Group], now: Nanoseconds, *, newest_only: bool
) -> tuple[Sequence[TableChanges], Sequence[Poison], Mapping[int, int]]:
    """Return the tables of groups, their poison, and how many rows of each message are outdated."""
    decoded = [_changes_of(group, now) for group in groups]
    together: dict[object, list[_Changes]] = {}
    for changes in decoded if newest_only else ():
        wanted = changes.group.destinations
        if wanted.mirror is not None and wanted.history is None:
            key = tuple((name, changes.keys[name].type) for name in wanted.header.primary_key)
            together.setdefault((wanted.mirror.identity, key), []).append(changes)
    newest: dict[int, tuple[pa.Table, Superseded | None]] = {}
    for mirrored in together.values():
        newest |= zip(map(id, mirrored), _newest_of(mirrored, now), strict=True)
    tables: list[TableChanges] = []
    poison: list[Poison] = []
    outdated: Counter[int] = Counter()
    for changes in decoded:
        group, mirror = changes.group, changes.group.destinations.mirror
        found: Sequence[tuple[TableDefinition, pa.Table]]
        if mirror is not None and id(changes) in newest:
            rows, superseded = newest[id(changes)]
            found = [(mirror, rows)]
        else:
            found, superseded = _tables_of(changes, None, now), None
        poison += changes.poison(changes.refusals.found)
        left_out = changes.outdated & ~_mask(len(changes.message), changes.refusals.found)
        latest = pc.max(changes.commit.filter(pa.array(left_out))).as_py()
        for definition, rows in found:
            end, lacks = (None, None) if definition.append_only else (group.end, latest)
            before = None if definition.append_only else changes.write_before
            tables.append(TableChanges(definition, rows, tuple(group.messages), end, lacks, superseded, before))
        outdated.update(changes.message[left_out].tolist())
    return tables, poison, outdated


def _changes_of(group: _Group, now: Nanoseconds) -> _Changes:
    """Return the changes of a group; refused is what is wrong with them beside their rows."""
    wanted = group.destinations
    lengths = np.array([len(batch) for batch in group.batches], np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    message = np.repeat(np.array(group.messages, np.int32), lengths)
    change = (np.arange(lengths.sum()) - np.repeat(starts, lengths)).astype(np.int32)
    live = pa.array(np.repeat(np.array(group.live, np.bool_), lengths))
    op = _texts(batch.op for batch in group.batches)
    sequence = _texts(batch.sequence for batch in group.batches)
    commit, not_instants = wire_values(TIMESTAMP, _texts(batch.commit_timestamp for batch in group.batches))
    keys = list(chain.from_iterable(batch.keys for batch in group.batches))
    parsed = parse_objects("key", keys, wanted.key)

    refusals = _Refusals(dict(parsed.refused))
    upsert, delete = pc.equal(op, "UPSERT"), pc.equal(op, "DELETE")
    unknown = pc.invert(pc.or_(upsert, delete))
    refusals.refuse_where(unknown, Reason.BAD_CHANGE, "its operation is neither UPSERT nor DELETE")
    refusals.refuse_where(pc.invert(parsed.there), Reason.BAD_CHANGE, "its key is not a JSON object")
    refusals.refuse_where(
        pc.invert(are_sequences(sequence)),
        Reason.BAD_SEQUENCE,
        "not 1 to 4 sections of 1 to 16 hexadecimal digits, joined by '/'",
    )
    refusals.refuse(not_instants, Reason.BAD_CHANGE, f"commit timestamp: {limit_of(TIMESTAMP)}")
    latest = np.repeat(np.array(group.latest, np.int64), lengths)
    ahead = pa.array(first_sections(sequence) > latest.astype(np.uint64))
    refusals.refuse_where(ahead, Reason.BAD_SEQUENCE, f"its sequence begins with {_IS_AHEAD}")
    ahead = pc.greater(commit, pa.array(latest))
    refusals.refuse_where(ahead, Reason.BAD_SEQUENCE, f"its commit timestamp is {_IS_AHEAD}")
    outdated, write_before = np.zeros(len(message), np.bool_), None
    if wanted.mirror is not None:
        write_before = _write_before(live, op, commit, now)
        old = too_old(live, op, commit, now)
        snapshot = np.repeat(np.array(group.snapshot, np.bool_), lengths)
        oldest = pa.array(np.repeat(np.array(group.oldest, np.int64), lengths))
        snapshot &= pc.greater_equal(commit.cast(pa.int64()), oldest).fill_null(False).to_numpy(zero_copy_only=False)
        refusals.refuse_where(
            pc.and_(old, pa.array(~snapshot)),
            Reason.TOO_OLD_TO_BE_SAFE,
            "an upsert of a replay, or one published late, and older than deletes are remembered: "
            "it could bring a deleted row back",
        )
        outdated = snapshot & old.fill_null(False).to_numpy(zero_copy_only=False)
    if wanted.header.content == "entries":
        refusals.refuse_where(delete, Reason.BAD_CHANGE, "a delete among the entries of a change log")
    _refuse_partial_images(refusals, group, lengths)
    typed = _typed(wanted, wanted.key, parsed, refusals)
    rows, last_values = _rows_of(group, op)
    return _Changes(
        group, message, change, op, sequence, commit, typed, rows, last_values, outdated, refusals, write_before
    )


def _tables_of(
    changes: _Changes, places: Places | None, now: Nanoseconds
) -> Sequence[tuple[TableDefinition, pa.Table]]:
    """Parse the rows of some changes, or of all; return what goes into each table. What does not fit is refused."""
    wanted = changes.group.destinations

    def some(values: pa.Array) -> pa.Array:
        return values if places is None else values.take(pa.array(places))

    refusals = changes.refusals.of(places)
    op, sequence, commit = some(changes.op), some(changes.sequence), some(changes.commit)
    last_values = None if changes.last_values is None else some(changes.last_values)
    rows = changes.rows if places is None else [changes.rows[place] for place in places.tolist()]
    parsed = parse_objects("row", rows, wanted.rest, wanted.ignored)
    for index, (reason, detail) in parsed.refused.items():
        refusals.refuse([index], reason, detail)
    _check_rows(refusals, op, parsed, last_values)
    columns = {name: some(values) for name, values in changes.keys.items()}
    columns |= _typed(wanted, wanted.rest, parsed, refusals)
    found: list[tuple[TableDefinition, dict[str, pa.Array]]] = []
    if wanted.mirror is not None:
        deleted = pc.equal(op, "DELETE")
        change_type = pc.if_else(deleted, "UPSERT", op) if wanted.soft_delete else op
        ours: dict[str, pa.Array] = {
            SEQUENCE_COLUMN: sequence,
            COMMIT_TIMESTAMP_COLUMN: commit,
            DELETED_COLUMN: deleted,
        }
        ours |= {CHANGE_TYPE: change_type, CHANGE_SEQUENCE_NUMBER: sequence}
        found.append((wanted.mirror, columns | ours))
    if wanted.history is not None and wanted.history.entries:
        found.append((wanted.history, {**columns, **entry_columns(sequence, commit, now)}))
    elif wanted.history is not None:
        if last_values is not None:  # in a history they stand beside the delete, as the old values they are
            rest = [each.name for each in wanted.kept if each.name not in wanted.header.primary_key]
            columns |= {name: _null_where(last_values, columns[name]) for name in rest}
        rewrite = rewritten(wanted.ignored, wanted.masks, wanted.names)
        beside = history_columns(wanted.header.table, changes.group.batches, rewrite, op, sequence, commit, now)
        found.append((wanted.history, {**columns, **beside}))
    kept = some(pa.array(changes.candidates()))
    tables = []
    for definition, values in found:
        schema = row_schema(definition)
        table = pa.table([values[name] for name in schema.names], schema=schema)
        table = table.append_column(MESSAGE, some(pa.array(changes.message)))
        table = table.append_column(CHANGE, some(pa.array(changes.change)))
        tables.append((definition, table if pc.all(kept, min_count=0).as_py() else table.filter(kept)))
    return tables


def _newest_of(mirrored: Sequence[_Changes], now: Nanoseconds) -> Sequence[tuple[pa.Table, Superseded | None]]:
    """Return of each of some column lists of one mirror the rows that are newest of their keys; no others are parsed.

    Where one does not fit, the next newest of its key is parsed in its place: a few times, and then all of them.
    """
    compared = pa.concat_tables([each.to_compare() for each in mirrored])
    primary_key = mirrored[0].group.destinations.header.primary_key
    ends = np.cumsum([len(each.message) for each in mirrored])[:-1]
    outdated = np.concatenate([each.outdated for each in mirrored])
    parsed = np.zeros(len(compared), np.bool_)
    found: list[list[pa.Table]] = [[] for _ in mirrored]
    candidates = np.concatenate([each.candidates() for each in mirrored])
    chosen = newest_rows(compared, primary_key, candidates) | outdated  # of those the values are read, too
    for rounds_left in reversed(range(_ROUNDS)):
        for changes, rows, places in zip(mirrored, found, np.split(chosen, ends), strict=True):
            if places.any():
                ((_definition, table),) = _tables_of(changes, np.flatnonzero(places), now)
                rows.append(table)
        parsed |= chosen
        before, candidates = candidates, np.concatenate([each.candidates() for each in mirrored])
        if (before == candidates).all():
            break
        left = candidates & ~parsed
        chosen = newest_rows(compared, primary_key, candidates) & left if rounds_left > 1 else left
    left = candidates & ~parsed
    return [
        (_in_order(rows or [_no_rows(changes, now)]), _superseded(changes, np.flatnonzero(places), now))
        for changes, rows, places in zip(mirrored, found, np.split(left, ends), strict=True)
    ]


def _no_rows(changes: _Changes, now: Nanoseconds) -> pa.Table:
    ((_definition, table),) = _tables_of(changes, np.empty(0, np.int64), now)
    return table


def _in_order(rows: Sequence[pa.Table]) -> pa.Table:
    """Return rows in the order in which they came."""
    return (
        rows[0] if len(rows) == 1 else pa.concat_tables(rows).sort_by([(MESSAGE, "ascending"), (CHANGE, "ascending")])
    )


def _superseded(changes: _Changes, places: Places, now: Nanoseconds) -> Superseded | None:
    def parse() -> tuple[pa.Table, Sequence[Poison]]:
        ((_definition, table),) = _tables_of(changes, places, now)
        return table, changes.poison(places.tolist())

    return Superseded(len(places), parse) if len(places) else None


def _rows_of(group: _Group, op: pa.StringArray) -> tuple[list[msgspec.Raw], pa.BooleanArray | None]:
    """Return the row objects; with soft delete, a delete's are the last values of its row where the stream has them.

    And which those are; None if none is. A delete with values that do not fit is applied without them.
    """
    rows = list(chain.from_iterable(batch.rows for batch in group.batches))
    if not group.destinations.soft_delete:
        return rows, None
    old = list(chain.from_iterable(batch.old for batch in group.batches))
    deletes = np.flatnonzero(pc.equal(op, "DELETE").to_numpy(zero_copy_only=False)).tolist()
    taken = [index for index in deletes if bytes(rows[index]) == _NULL and bytes(old[index]) != _NULL]
    unfit = _unfit(group.destinations, [old[index] for index in taken])
    taken = [index for place, index in enumerate(taken) if place not in unfit]
    if not taken:
        return rows, None
    for index in taken:
        rows[index] = old[index]
    return rows, pa.array(_mask(len(rows), taken))


def _unfit(wanted: Destinations, rows: Sequence[msgspec.Raw]) -> Collection[int]:
    """Return which row objects cannot be rows of the table."""
    parsed, refusals = parse_objects("row", rows, wanted.rest, wanted.ignored), _Refusals()
    _typed(wanted, wanted.rest, parsed, refusals)
    return parsed.refused.keys() | refusals.found.keys()


def _mask(count: int, indices: Collection[int]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[list(indices)] = True
    return mask


def _null_where(mask: pa.BooleanArray, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def too_old(live: pa.Array, op: pa.Array, commit_micros: pa.Array, now: Nanoseconds) -> pa.BooleanArray:
    """Tell which changes are too old to be safe: upserts not live from the stream, older than deletes are remembered.

    A live change is exempt: what deleted its row later is still to come, or is applied again after it. A replay comes
    at any time, when that delete may have been applied and forgotten.
    """
    old = pc.less(commit_micros, oldest_safe(now))
    return pc.and_(pc.and_(old, pc.equal(op, "UPSERT")), pc.invert(live))


def _write_before(live: pa.Array, op: pa.Array, commit_micros: pa.Array, now: Nanoseconds) -> Nanoseconds | None:
    """Return until when those upserts may be written that are not live, and not too old yet; None: there are none."""
    new_enough = pc.greater_equal(commit_micros, oldest_safe(now))
    guarded = pc.and_(pc.and_(pc.equal(op, "UPSERT"), pc.invert(live)), new_enough)
    oldest = pc.min(commit_micros.filter(guarded).cast(pa.int64())).as_py()
    return None if oldest is None else Nanoseconds((oldest + SAFE_MICROSECONDS + _MAY_WAIT) * 1_000)


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


def _check_rows(refusals: _Refusals, op: pa.StringArray, parsed: Parsed, last_values: pa.BooleanArray | None) -> None:
    with_row = parsed.there if last_values is None else pc.and_(parsed.there, pc.invert(last_values))
    without = pc.and_(pc.equal(op, "UPSERT"), pc.invert(parsed.there))
    refusals.refuse_where(without, Reason.BAD_CHANGE, "an upsert without a row")
    refusals.refuse_where(pc.and_(pc.equal(op, "DELETE"), with_row), Reason.BAD_CHANGE, "a delete with a row")


def _typed(
    wanted: Destinations, columns: Sequence[TableColumn], parsed: Parsed, refusals: _Refusals
) -> dict[str, pa.Array]:
    """Return some of the source's columns in their wire types, masked and by their names in BigQuery.

    What does not fit is refused.
    """
    typed = {}
    for column, kept in zip(wanted.parsed, wanted.kept, strict=True):
        if column not in columns:
            continue
        texts, mask = parsed.columns[column.name], wanted.masks.get(column.name)
        if mask is not None and mask.mask.kind == "null":
            typed[kept.name] = pa.nulls(len(texts), kept.type.wire)
            continue
        element, as_json = column.type.element, kept.type.element is None
        of_texts = as_json and element == PG_JSONB  # an element of such a JSON column is a text, which holds any number
        values, invalid = wire_values(array_of(JSON) if of_texts else column.type, texts)
        what = f"column {column.name} of type {column.type.googlesql}"
        if element is not None and as_json:
            values = json_arrays(values if element in (FLOAT32, UUID) else texts)
        elif element is not None:
            of_null = f"{what}: an element is NULL, which a BigQuery array cannot hold"
            refusals.refuse(holding_null(texts), Reason.VALUE_DOES_NOT_FIT, of_null)
        if invalid:
            refusals.refuse(invalid, Reason.VALUE_DOES_NOT_FIT, f"{what}: {limit_of(column.type)}")
        if column.name in wanted.header.primary_key:
            unfit = Reason.KEY_NOT_REPRESENTABLE
            refusals.refuse_where(texts.is_null(), unfit, f"key {what}: NULL, which a BigQuery key cannot hold")
            if column.type == TIMESTAMP:
                beyond = beyond_microseconds(texts)
                refusals.refuse_where(beyond, unfit, f"key {what}: digits beyond the microsecond would be cut")
            if column.type == NUMERIC:
                values = normal_numerics(values)
        typed[kept.name] = values if mask is None else mask.array(values)
    return typed
