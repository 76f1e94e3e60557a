"""Compares a mirror with its source, whole and by value, while both go on changing; and repairs what differs, if asked.

Both sides are read once, into buckets by key outside memory, and compared bucket by bucket, column by column. Between
the two readings rows change, so what differs there only has to be inspected: by its key, on both sides, again and
again, until it is equal, has stood, or is seen to go on changing (`core/standing.py`). The source is read before the
mirror, so that a change which was on its way has the time of a reading to come.

A query of a mirror reads all of it, whatever it asks for, while changes wait to be merged. So the whole mirror is one
query; and each recheck is one, of many rows, with a pause of the whole time that rows have to stand still.

A repair writes nothing by itself: the source's reader publishes what is true of the keys, and the consumer applies it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

import structlog

from services.cdc_consumer.app.reconcile.comparison import Candidate, Difference, TableDifferences
from services.cdc_consumer.app.reconcile.recheck import KEYS, RETRY_BUDGET, Recheck, Waits
from services.cdc_consumer.core.reconcile.comparing import DifferenceKind, compare, newest_sequence
from services.cdc_consumer.core.reconcile.source_table import Mirrored, Unfit, mirrored, source_rows
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.ports import (
    MAKE_AGAIN,
    BytesLimitError,
    FoundMirror,
    MirrorReading,
    MirrorTables,
    QueryEstimate,
    QuerySpend,
    RowBuckets,
    SourceTables,
)
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Done, Key
from shared.runtime.retries import AttemptProgress, retrying

_AT_ONCE: Final = 16
"""Batches that are parsed together, each of 500 rows or a megabyte at most."""
_BUCKET_BYTES: Final = 64 << 20
_LEAST_BUCKETS: Final = 16
_MOST_BUCKETS: Final = 512
BLOCK: Final = 20_000
"""Differences that are inspected again together: each inspection is a query."""
_MOST_KEPT: Final = 100_000
_MOST_STANDING: Final = 10_000
"""Once so many stand, no more are inspected: such a table is to be resynced, not repaired."""
_AFTER_STALENESS: Final = timedelta(seconds=30)
_HEALED_WITHIN: Final = timedelta(minutes=2)
_AHEAD_MICROS: Final = 30_000_000
"""How far ahead of the source's clock an applied sequence may be: a repair waits so long for its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """How tables are compared."""

    settle: timedelta = timedelta(seconds=30)
    """For how long a row has to differ, its mirror row standing still."""
    at: str | None = None
    """RFC 3339: the time of the first reading of the source; None: now."""
    repair: bool = False


class Reconciler:
    """Compares tables, one after the other."""

    def __init__(
        self,
        *,
        source: SourceTables,
        mirrors: MirrorTables,
        plan: Plan,
        row_buckets: Callable[[Mirrored, int], AbstractContextManager[RowBuckets]],
        waits: Waits,
        options: ReconcileOptions,
    ) -> None:
        """``row_buckets`` makes room for the rows of one side, in so many buckets."""
        self._source = source
        self._mirrors = mirrors
        self._plan = plan
        self._row_buckets = row_buckets
        self._waits = waits
        self._options = options
        self._log = structlog.get_logger()

    def tables(self) -> Sequence[str]:
        """Return all tables that the source mirrors."""
        return self._waits.retried(self._source.tables)

    def estimate(self, name: str) -> tuple[FoundMirror, QueryEstimate]:
        """Return a table's mirror, and what its comparison would read. MisconfiguredError where there can be none."""
        table, mirror = self._found(name)
        return mirror, self._waits.retried(lambda: self._mirrors.estimate(table, mirror))

    def _found(self, name: str) -> tuple[Mirrored, FoundMirror]:
        batch, _done = self._waits.retried(lambda: self._source.describe(name))
        table = mirrored(batch, self._plan)
        return table, self._waits.retried(lambda: self._mirrors.find(table))

    def reconcile(self, name: str) -> TableDifferences:
        """Compare a table with its mirror. MisconfiguredError where they cannot be compared."""
        before = self._mirrors.spent()
        table, mirror = self._found(name)
        settle = self._options.settle
        if mirror.staleness:
            settle = max(settle, mirror.staleness + _AFTER_STALENESS)
        result = TableDifferences(
            name, mirror.path, settle=settle, lacking=tuple(sorted(mirror.lacking)), left_out=mirror.left_out
        )
        recheck = Recheck(self._source, self._mirrors, self._plan, self._waits, table, mirror)
        candidates = self._read_both_sides(table, mirror, recheck, result)
        rows = iter(candidates.items())
        while block := dict(islice(rows, BLOCK)):
            try:
                recheck.settle(block, result)
            except BytesLimitError as error:  # what was found out until then has been paid for, and is reported
                result.not_rechecked += len(block)
                result.stopped = str(error)
                break
            if len(result.differences) >= _MOST_STANDING:
                break
        result.not_rechecked += sum(1 for _row in rows)
        if self._options.repair and result.differences:
            try:
                self._repair(recheck, result)
            except (MisconfiguredError, TransientError) as error:  # what was found out by then is reported all the same
                if self._waits.stop.requested:
                    raise
                result.not_repaired.append(f"the repair has not come to its end: {error}")
        after = self._mirrors.spent()
        result.cost = QuerySpend(after.queries - before.queries, after.bytes_billed - before.bytes_billed)
        return result

    def _read_both_sides(
        self, table: Mirrored, mirror: FoundMirror, recheck: Recheck, result: TableDifferences
    ) -> Mapping[str, Candidate]:
        """Read both sides whole; return the rows that differ, some of which only seem to."""
        buckets = min(max(mirror.bytes // _BUCKET_BYTES, _LEAST_BUCKETS), _MOST_BUCKETS)
        candidates: dict[str, Candidate] = {}
        with ExitStack() as kept:
            progress = AttemptProgress()
            for attempt in retrying(self._waits.stop, RETRY_BUDGET, progress=progress):
                with attempt, ExitStack() as room:
                    ours = room.enter_context(self._row_buckets(table, buckets))
                    done, unfit = self._read_source(table, ours, progress)
                    kept.enter_context(room.pop_all())
            progress, reading = AttemptProgress(), kept.enter_context(self._mirrors.reading(table, mirror))
            for attempt in retrying(self._waits.stop, RETRY_BUDGET, progress=progress):
                with attempt, self._row_buckets(table, buckets) as theirs:
                    result.newest_applied = self._read_mirror(table, reading, theirs, progress)
                    candidates = dict(self._compared(table, recheck, result, ours, theirs, buckets))
        candidates |= {table.row_id(one.key): Candidate(one.key, None) for one in unfit} | candidates
        result.rows += len(unfit)
        result.read_at = done.at
        self._log.info(
            "both_sides_read",
            table=result.table,
            source_rows=result.source_rows,
            mirror_rows=result.mirror_rows,
            to_look_at_again=len(candidates),
        )
        return candidates

    def _read_source(
        self, table: Mirrored, into: RowBuckets, progress: AttemptProgress
    ) -> tuple[Done, Sequence[Unfit]]:
        unfit: list[Unfit] = []
        some: list[bytes] = []

        def take() -> None:
            rows, refused = source_rows(table, some, self._plan)
            into.add(rows)
            unfit.extend(refused[: max(0, _MOST_KEPT - len(unfit))])
            some.clear()

        for place, answer in enumerate(self._source.read(table.header.table, self._options.at)):
            progress.reached(place)
            if isinstance(answer, Done):
                take()
                into.finish()
                return answer, unfit
            some.append(answer)
            if len(some) >= _AT_ONCE:
                take()
        raise AssertionError("a reading ends with Done")

    def _read_mirror(self, table: Mirrored, reading: MirrorReading, into: RowBuckets, progress: AttemptProgress) -> str:
        """Read a mirror whole; return the highest sequence in it that is of the source's past."""
        newest, until = "", self._source.describe(table.header.table)[1].sequence
        for place, rows in enumerate(reading.pages(), 1):
            progress.reached(place)
            newest = max(newest, newest_sequence(rows, until))
            into.add(rows)
        into.finish()
        return newest

    def _compared(
        self,
        table: Mirrored,
        recheck: Recheck,
        result: TableDifferences,
        ours: RowBuckets,
        theirs: RowBuckets,
        buckets: int,
    ) -> Iterator[tuple[str, Candidate]]:
        result.source_rows = result.mirror_rows = result.matched = result.rows = result.not_rechecked = kept = 0
        for bucket in range(buckets):
            found = compare(table.definition, table.columns, ours.read(bucket), theirs.read(bucket))
            theirs.forget(bucket)
            result.source_rows += found.source_rows
            result.mirror_rows += found.mirror_rows
            result.matched += found.matched
            result.rows += found.matched + sum(kind is not DifferenceKind.DIFFERENT for kind in found.kinds)
            keys = found.keys.slice(0, max(0, _MOST_KEPT - kept))
            kept += len(keys)
            result.not_rechecked += len(found.keys) - len(keys)
            yield from recheck.candidates(keys).items()

    def _repair(self, recheck: Recheck, result: TableDifferences) -> None:
        """Have what is true of the rows that differ published, and recheck until it has come."""
        extra = sum(one.kind is DifferenceKind.EXTRA for one in result.differences)
        if extra and not result.matched:
            result.not_repaired.append(
                f"the source has none of the mirror's {result.mirror_rows} rows, so none is deleted: if that is right, "
                "delete missing rows"
            )
            return
        _batch, now = self._waits.retried(lambda: self._source.describe(result.table))
        latest = parse_sequence(now.sequence).sections[0] + _AHEAD_MICROS
        wanted: dict[str, tuple[Key, Difference]] = {}
        for one in result.differences:
            if why := _no_repair(one, latest):
                result.not_repaired.append(f"{one.key}: {why}")
            elif one.row.key is not None:
                wanted[one.key] = one.row.key, one
        rows = iter(list(wanted.values()))
        while some := list(islice(rows, KEYS)):
            keys, above = [key for key, _one in some], max(one.applied for _key, one in some)
            try:
                self._waits.retried(partial(self._source.publish, result.table, keys, above))
            except (MisconfiguredError, TransientError) as error:
                if self._waits.stop.requested:
                    raise
                result.not_repaired.append(f"{some[0][1].key} and {len(some) - 1} others were not published: {error}")
                for _key, one in some:
                    del wanted[one.key]
        self._log.info("repair_published", table=result.table, rows=len(wanted))
        within = max(_HEALED_WITHIN, result.settle)
        left = recheck.until_equal({row: one.row for row, (_key, one) in wanted.items()}, within)
        result.repaired = len(wanted) - len(left)
        result.differences = [one for one in result.differences if one.key in left or one.key not in wanted]
        if left:
            result.not_repaired.append(
                f"{len(left)} rows still differ after {within.total_seconds():.0f} s: does the consumer run?"
            )


def _no_repair(one: Difference, latest: int) -> str:
    """Return why a row cannot be repaired; empty where it can be."""
    if one.kind is DifferenceKind.UNFIT:
        return f"no row of BigQuery's can hold it ({one.why})"
    if one.row.columns is not None and not one.row.askable:
        return f"its key holds a NULL, so no change can delete it: {MAKE_AGAIN}"
    if one.row.key is None:
        return "no row of the source's can have that key: take a snapshot, and delete missing rows then"
    try:
        applied = parse_sequence(one.applied).sections[0] if one.applied else 0
    except ValueError:
        return f"what is applied to it is no sequence of ours ({one.applied!r}): {MAKE_AGAIN}"
    if applied > latest:
        return f"BigQuery holds a time in the future for it ({one.applied}), and would ignore what is published now"
    return ""
