"""What a database's tables look like, and which changes of them change data without a change record.

Nothing in INFORMATION_SCHEMA identifies a table or a column across a drop: it has names, an order and a state, no ids
and no times of creation. So two inspections are compared, and what distinguishes a column that was added again from one
that stayed is the order: a column can only ever be added last. What was dropped and made again alike between two
inspections, its order included, cannot be seen; a change record that was committed in between and lacks the column
shows it all the same, whenever it is read: each column is remembered with the time since which all inspections have had
it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from shared.contracts.tables_file import TableOptions
from shared.contracts.timestamps import Nanoseconds, nanoseconds

DROPPED_UNSEEN: Final = nanoseconds(timedelta(minutes=3))
"""How much later than its last inspection a change may be that a reader drops for its tables file: a few inspections.

Two readers' files may differ, while a new one is rolled out. A reader that leaves a table out has that stored by each
inspection of its own, and drops no change that was committed more than this after the last one
(`SchemaWatch.leave_out`). The next inspection of a reader that has the table in finds what is stored, and requests
a resync. So of all that was dropped by then, or is dropped before the other inspects again, nothing was committed later
than this after the inspection that requests it; and if the other has inspected again, the next inspection here requests
it again. A snapshot that answers such a request has to be later than that.
"""

COLUMNS_UNSEEN: Final = nanoseconds(timedelta(seconds=1))
"""How much older than a change the inspection may be whose columns its row is completed with.

A column that was added with a default may be missing in such a change. So what was found of columns is healed only by
rows that were read later than this after the inspection that found it: no such change is newer.
"""

NEVER: Final = Nanoseconds((1 << 63) - 1)
"""The end of a finding that lasts: no snapshot is later."""
_NO_TIME: Final = Nanoseconds(0)


_SAME_VALUES: Final[Mapping[str, str]] = {"PROTO": "BYTES", "ENUM": "INT64"}
"""Types that Spanner turns into another and back, and whose values are written the same in records."""


class SpannerResyncKind(StrEnum):
    """What has happened to a table."""

    COLUMN_DEFAULTED = "column_added_with_default"
    COLUMN_AGAIN = "column_dropped_and_added_again"
    COLUMN_RETYPED = "column_type_changed"
    COLUMN_WATCHED = "column_added_to_the_stream"
    TABLE_AGAIN = "table_dropped_and_made_again"
    TABLE_WATCHED = "table_added_to_the_stream"
    TABLE_RENAMED = "table_may_have_been_renamed"
    TABLE_PAUSED = "table_paused"
    TABLE_LOST = "table_changes_lost_by_the_topic"
    TABLE_EXCLUDED = "table_changes_excluded_by_the_stream"


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A column that can be in a record; ``type`` is its GoogleSQL name. Generated columns are none, but in keys."""

    name: str
    type: str
    is_key: bool = False
    watched: bool = True
    has_default: bool = False
    """Whether rows that were there when it was added got a value."""
    nullable: bool = True
    ignored: bool = False
    """By the tables file of the inspecting reader; then it is not written."""
    since: Nanoseconds = _NO_TIME
    """The time of the first inspection from which on all have had it, watched. A later record without it shows that
    the column was dropped. 0 where it is not watched."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table: its columns in its order, and whether the stream watches it. One that it does not watch may have none.

    ``left_out``: the stream watches it, and the tables file of the inspecting reader does not; ``watched`` is false
    then. ``mirrored``: BigQuery may hold rows of it. ``gone``: it is no longer there. ``dropped``: columns that were
    mirrored and are no longer, whose old values BigQuery may still hold.
    """

    columns: tuple[ColumnShape, ...]
    watched: bool = True
    mirrored: bool = False
    gone: bool = False
    dropped: frozenset[str] = frozenset()
    left_out: bool = False
    history: bool = False
    """Whether it has no mirror but a history alone, by the tables file of the inspecting reader."""

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """Return names of the key columns, and how their values are written: another key names other rows.

        Where a column of it became another type (STRING to BYTES), the mirror has rows under the former key, too: that
        is as if the table had been dropped and made again.
        """
        return tuple(sorted((column.name, written_as(column.type)) for column in self.columns if column.is_key))

    @property
    def watched_names(self) -> frozenset[str]:
        """Return the columns whose values are mirrored."""
        return frozenset(column.name for column in self.columns if column.watched) if self.watched else frozenset()


@dataclass(frozen=True, slots=True)
class SchemaInspection:
    """All tables of a database as they were at one time (Spanner's)."""

    at: Nanoseconds
    watches_everything: bool
    tables: Mapping[str, TableShape] = field(default_factory=dict)
    compared_since: Nanoseconds | None = None
    """The time of the first inspection of this kind that was compared with one before. Records committed earlier show
    what no inspection has seen: the stream may be read from long before."""
    exclusions: frozenset[str] = frozenset()
    """The stream's options that kept changes out of it."""


@dataclass(frozen=True, slots=True)
class SchemaObservation:
    """The columns that a change record had, of an insert or an update: with whole rows, all that are watched."""

    table: str
    columns: tuple[ColumnShape, ...]
    """In the table's order."""
    at: Nanoseconds

    @property
    def names(self) -> frozenset[str]:
        """Return what the columns are called."""
        return frozenset(column.name for column in self.columns)


@dataclass(frozen=True, slots=True)
class SpannerResyncCause:
    """Data of a table may have changed without records, after one time and before another.

    ``dropped_until``: until then another reader may drop changes of it, whose tables file leaves it out; or 0.
    """

    table: str
    kind: SpannerResyncKind
    after: Nanoseconds
    before: Nanoseconds
    columns: tuple[str, ...] = ()
    dropped_until: Nanoseconds = _NO_TIME

    @property
    def sync_after(self) -> Nanoseconds:
        """Return the time before which a row that comes again proves nothing."""
        unseen = COLUMNS_UNSEEN if self.columns else _NO_TIME
        return max(Nanoseconds(self.before + unseen), self.dropped_until)


@dataclass(frozen=True, slots=True)
class SpannerResyncRequest:
    """A table is pending resync: what was found of it, oldest first."""

    table: str
    findings: tuple[SpannerResyncCause, ...]

    @property
    def since(self) -> Nanoseconds:
        """Return the time from which on the mirror may differ."""
        return min(finding.after for finding in self.findings)

    @property
    def sync_after(self) -> Nanoseconds:
        """Return the time before which a row that comes again proves nothing."""
        return max(finding.sync_after for finding in self.findings)

    def with_more(self, findings: Iterable[SpannerResyncCause]) -> "SpannerResyncRequest":
        """Return it with what was found since; the same again moves on the time after which rows have to come."""
        merged = {(one.kind, one.columns): one for one in self.findings}
        for one in findings:
            before = merged.get((one.kind, one.columns))
            merged[one.kind, one.columns] = one if before is None else _later(before, one)
        return SpannerResyncRequest(self.table, tuple(merged.values()))


@dataclass(frozen=True, slots=True)
class SchemaComparison:
    """What is to be remembered from now on, and what was found."""

    remembered: SchemaInspection
    findings: tuple[SpannerResyncCause, ...] = ()
    left: tuple[str, ...] = ()
    """Tables that were mirrored until now: dropped, or taken out of the stream."""


def _later(before: SpannerResyncCause, again: SpannerResyncCause) -> SpannerResyncCause:
    return replace(before, before=again.before, dropped_until=max(before.dropped_until, again.dropped_until))


def written_as(googlesql: str) -> str:
    """Return the type that values of a type are written as in records."""
    if googlesql.startswith("ARRAY<"):
        element = googlesql.removeprefix("ARRAY<").removesuffix(">")
        return f"ARRAY<{_SAME_VALUES.get(element, element)}>"
    return _SAME_VALUES.get(googlesql, googlesql)


def compare(
    old: SchemaInspection | None, new: SchemaInspection, observations: Collection[SchemaObservation] = ()
) -> SchemaComparison:
    """Return what the second inspection says about the time since the first, and observations about the time before.

    Without a first inspection, what there is to say is what observations from before the second one say.
    """
    if old is None:
        found = {name: _dated(_mirrored(table), new.at) for name, table in new.tables.items() if _matters(table)}
        first = replace(new, tables=found)
        return SchemaComparison(first, tuple(_before(first, observations)))
    past, absent_since = _as_observed(old, new, observations)
    vanished = [table for name, table in past.tables.items() if not table.gone and name not in new.tables]
    remembered: dict[str, TableShape] = {}
    findings = _before(old, observations)
    left: list[str] = []
    for name in sorted(past.tables.keys() | new.tables.keys()):
        before, now = past.tables.get(name), new.tables.get(name)
        if before is not None and before.watched and not before.gone and (now is None or not now.watched):
            left.append(name)
        if now is not None:
            whole = past.watches_everything and new.watches_everything
            kinds = _kinds(before, now, vanished=vanished, born_watched=whole)
            let_in = before is not None and before.left_out
            until = Nanoseconds(new.at + DROPPED_UNSEEN) if let_in else _NO_TIME
            after = absent_since.get(name, old.at)
            findings += [
                SpannerResyncCause(name, kind, after, new.at, columns, until) for kind, columns in kinds.items()
            ]
            if now.watched and old.exclusions | new.exclusions:
                findings.append(SpannerResyncCause(name, SpannerResyncKind.TABLE_EXCLUDED, old.at, new.at))
            if _matters(now, before):
                remembered[name] = _dated(_mirrored(now, before), new.at, before, kinds)
        elif before is not None and before.mirrored:  # another under its name would be a mirror of two tables
            remembered[name] = replace(before, gone=True, watched=False)
    since = new.at if old.compared_since is None else old.compared_since
    return SchemaComparison(replace(new, tables=remembered, compared_since=since), tuple(findings), tuple(left))


def lost(inspection: SchemaInspection, after: Nanoseconds, before: Nanoseconds) -> Sequence[SpannerResyncCause]:
    """Return what it means for tables that changes were published and no subscription kept them."""
    watched = sorted(name for name, table in inspection.tables.items() if table.watched and not table.gone)
    return [SpannerResyncCause(name, SpannerResyncKind.TABLE_LOST, after, before) for name in watched]


def synced(table: TableShape) -> TableShape | None:
    """Return what to remember of a table whose rows came again: nothing of what was; None if it is gone."""
    return None if table.gone else replace(table, dropped=frozenset(), mirrored=table.watched)


def _kinds(
    before: TableShape | None, now: TableShape, *, vanished: Sequence[TableShape], born_watched: bool
) -> Mapping[SpannerResyncKind, tuple[str, ...]]:
    """Return what has happened to a table, and to which columns."""
    if not now.watched:
        return {}
    if before is None:
        if any(other.key == now.key for other in vanished):
            return {SpannerResyncKind.TABLE_RENAMED: ()}  # a rename takes the rows along, and no record says so
        # All rows of a table that was made under a stream of everything are in the stream.
        return {} if born_watched else {SpannerResyncKind.TABLE_WATCHED: ()}
    if before.gone or before.key != now.key or any(one.is_key and one.name in before.dropped for one in now.columns):
        return {SpannerResyncKind.TABLE_AGAIN: ()}
    if not before.watched or (before.history and not now.history):
        return {SpannerResyncKind.TABLE_WATCHED: ()}
    return _column_kinds(before, now)


def _column_kinds(before: TableShape, now: TableShape) -> Mapping[SpannerResyncKind, tuple[str, ...]]:
    known = {column.name: column for column in before.columns}
    again = added_again([column.name for column in before.columns], [column.name for column in now.columns])
    gone = {*known, *before.dropped} - {column.name for column in now.columns}
    alike = {name.lower() for name in gone}  # of which BigQuery still has the column
    again |= {column.name for column in now.columns if column.name not in known and column.name.lower() in alike}
    kinds: dict[SpannerResyncKind, tuple[str, ...]] = {}
    for column in now.columns:
        kind = _column_kind(known.get(column.name), column, again=column.name in again | before.dropped)
        if column.watched and kind is not None:
            kinds[kind] = (*kinds.get(kind, ()), column.name)
    return kinds


def _column_kind(before: ColumnShape | None, now: ColumnShape, *, again: bool) -> SpannerResyncKind | None:
    if before is not None and written_as(before.type) != written_as(now.type):
        return SpannerResyncKind.COLUMN_RETYPED
    if before is not None and (not before.watched or (before.ignored and not now.ignored)):
        return SpannerResyncKind.COLUMN_WATCHED
    if again:
        return SpannerResyncKind.COLUMN_AGAIN
    if before is None and (now.has_default or not now.nullable):  # not null is none without a default, or a backfill
        return SpannerResyncKind.COLUMN_DEFAULTED
    return None  # it was there, or it was added and is NULL in all old rows, as it is in BigQuery


def with_findings(
    requests: Mapping[str, SpannerResyncRequest], findings: Iterable[SpannerResyncCause]
) -> Mapping[str, SpannerResyncRequest]:
    """Return the resync requests of all tables, with what was found now."""
    more = dict(requests)
    for one in findings:
        more[one.table] = (
            more[one.table].with_more([one]) if one.table in more else SpannerResyncRequest(one.table, (one,))
        )
    return more


def added_again(before: Sequence[str], now: Sequence[str]) -> frozenset[str]:
    """Return the names in both that were dropped in between, as the order shows: a column is always added last.

    None that stayed is among them. One that was added again is missed only where the order hides it, as it does for
    the last column.
    """
    places = {name: place for place, name in enumerate(before)}
    found = set()
    highest = -1
    for name in now:
        place = places.get(name, len(before))  # what is new stands behind all that stayed
        if place < highest:
            found.add(name)
        highest = max(highest, place)
    return frozenset(found)


def _matters(now: TableShape, before: TableShape | None = None) -> bool:
    """Return whether a table has to be remembered: one that comes into the stream later is resynced without that."""
    return now.watched or now.left_out or (before is not None and before.mirrored)


def _mirrored(now: TableShape, before: TableShape | None = None) -> TableShape:
    """Return a table as it is now, with what BigQuery may still hold of what it was."""
    if before is None:
        return replace(now, mirrored=now.watched)
    dropped, columns = (before.dropped | before.watched_names) - now.watched_names, now.columns
    if not now.watched:  # its columns are not gone: all of it comes back, or none; nor need anybody have read them
        dropped, columns = before.dropped, now.columns or before.columns
    return replace(now, columns=columns, mirrored=before.mirrored or now.watched, dropped=dropped)


def _dated(
    now: TableShape,
    at: Nanoseconds,
    before: TableShape | None = None,
    kinds: Mapping[SpannerResyncKind, tuple[str, ...]] = MappingProxyType({}),
) -> TableShape:
    """Return a table with since when inspections show its columns: all of them, and nothing happened to them."""
    since: Mapping[str, Nanoseconds] = {}
    if before is not None and () not in kinds.values():  # else something has happened to the table
        found = {name for columns in kinds.values() for name in columns}
        names = before.watched_names - found
        since = {column.name: column.since for column in before.columns if column.name in names}
    names = now.watched_names
    columns = (replace(one, since=since.get(one.name, at) if one.name in names else _NO_TIME) for one in now.columns)
    return replace(now, columns=tuple(columns))


def _as_observed(
    old: SchemaInspection, new: SchemaInspection, observations: Collection[SchemaObservation]
) -> tuple[SchemaInspection, Mapping[str, Nanoseconds]]:
    """Return the first inspection with what is known to have been dropped by then or since, and the earliest time.

    That is what a record lacks from after the first inspection that had it, whether it was read before the next one or
    long after; and what only records have, before one that lacks it, or before an inspection that does.
    """
    tables = dict(old.tables)
    only_shown: dict[str, set[str]] = {}
    absent_since: dict[str, Nanoseconds] = {}
    for seen in sorted(observations, key=lambda one: one.at):
        table = tables.get(seen.table)
        if table is None or not table.watched:
            continue
        gone, shown = lacked(table, seen), only_shown.setdefault(seen.table, set())
        absent = {one.name for one in gone} | (shown - seen.names)
        shown |= seen.names - table.watched_names
        if seen.at <= old.at:
            absent |= shown
        tables[seen.table] = replace(table, dropped=table.dropped | absent)
        if gone and seen.at <= old.at:
            absent_since[seen.table] = min(absent_since.get(seen.table, old.at), *(one.since for one in gone))
    for name, shown in only_shown.items():
        left = shown - (new.tables[name].watched_names if name in new.tables else set())
        tables[name] = replace(tables[name], dropped=tables[name].dropped | left)
    return replace(old, tables=tables), absent_since


def lacked(table: TableShape, seen: SchemaObservation) -> list[ColumnShape]:
    """Return the columns that inspections have had since before a record that lacks them: they were absent."""
    lacking = table.watched_names - seen.names
    return [one for one in table.columns if one.name in lacking and one.since < seen.at]


def _before(inspection: SchemaInspection, observations: Iterable[SchemaObservation]) -> list[SpannerResyncCause]:
    """Return what records from before the first inspections say: each table's, from one to the next and to this one."""
    until = inspection.at if inspection.compared_since is None else inspection.compared_since
    by_table: dict[str, list[SchemaObservation]] = {}
    for seen in sorted(observations, key=lambda one: one.at):
        if seen.at < until:
            by_table.setdefault(seen.table, []).append(seen)
    findings = []
    for name, observed in by_table.items():
        now = inspection.tables.get(name)
        if now is None or now.gone or not now.watched:
            continue
        # Records contain no column that is not watched, so none is compared.
        now = replace(now, columns=tuple(column for column in now.columns if column.watched))
        whole = inspection.watches_everything or len(now.columns) == len(inspection.tables[name].columns)
        before, at = _observed(observed[0], now, whole=whole), observed[0].at
        for shape, when in [
            *((_observed(one, now, whole=whole), one.at) for one in observed[1:]),
            (now, inspection.at),
        ]:
            kinds = _kinds(before, shape, vanished=(), born_watched=True)
            findings += [SpannerResyncCause(name, kind, at, when, columns) for kind, columns in kinds.items()]
            before, at = _mirrored(shape, before), when
    return findings


def _observed(seen: SchemaObservation, now: TableShape, *, whole: bool) -> TableShape:
    """Return a table as a record has shown it; what records do not contain of its columns is as it is now.

    ``whole``: the stream watches all columns. Where it names them, one that was not in a record was not watched.
    """
    known = {column.name: column for column in now.columns}
    hidden = [] if whole else [replace(one, watched=False) for one in now.columns if one.name not in seen.names]
    columns = [
        replace(column, has_default=known[column.name].has_default, nullable=known[column.name].nullable)
        if column.name in known
        else column
        for column in seen.columns
    ]
    return TableShape((*columns, *hidden), mirrored=True)


def excluding(
    inspection: SchemaInspection, included: Callable[[str], bool], options: Callable[[str], TableOptions] | None = None
) -> SchemaInspection:
    """Return an inspection in which what is not to be mirrored is not watched, with what is not written of the rest."""
    return replace(
        inspection,
        tables={name: _with_options(name, table, included, options) for name, table in inspection.tables.items()},
    )


def _with_options(
    name: str, table: TableShape, included: Callable[[str], bool], options: Callable[[str], TableOptions] | None
) -> TableShape:
    if not included(name):
        return replace(table, watched=False, left_out=table.watched)
    if options is None or not table.watched:
        return table
    chosen = options(name)
    ignored = {column.lower() for column in chosen.ignored_columns}
    columns = [replace(one, ignored=True) if one.name.lower() in ignored else one for one in table.columns]
    return replace(table, columns=tuple(columns), history=chosen.mode == "history")
