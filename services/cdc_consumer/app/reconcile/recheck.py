"""Rows that differed, rechecked by their keys until it is known what they are."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
import structlog

from services.cdc_consumer.app.reconcile.comparison import Candidate, Difference, TableDifferences
from services.cdc_consumer.core.reconcile.comparing import DifferenceKind, compare
from services.cdc_consumer.core.reconcile.row_keys import key_kinds, wire_keys
from services.cdc_consumer.core.reconcile.source_table import Mirrored, Unfit, source_rows
from services.cdc_consumer.core.reconcile.standing import ObservedDifference, UnsettledRows, is_behind
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.ports import FoundMirror, MirrorProgress, MirrorTables, SourceTables
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import SEQUENCE_COLUMN
from shared.contracts.source_rows import Done, Key
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import Clock
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

RETRY_BUDGET: Final = timedelta(seconds=60)
"""How long a call is tried again."""
KEYS: Final = 1_000
"""Keys that the source is asked for at a time."""
_SHORTEST_PAUSE: Final = timedelta(milliseconds=200)
_FIRST_PAUSE: Final = timedelta(seconds=2)
_LONGEST_PAUSE: Final = timedelta(seconds=30)
"""Of a repair: each recheck is a query of the whole mirror."""
_BEHIND: Final = timedelta(minutes=10)
"""For how long what stands is inspected again while the mirror is on its way to where its source was."""

T = TypeVar("T")


class Waits:
    """The one retry policy, the clock, and pauses that a stop ends."""

    def __init__(self, clock: Clock, stop: Stop, pause: Callable[[timedelta], object] | None = None) -> None:
        self._clock = clock
        self.stop = stop
        self._pause = pause or stop.wait

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return self._clock.now()

    def retried(self, call: Callable[[], T]) -> T:
        """Make a call, again for a minute where it may succeed."""
        return retrying(self.stop, RETRY_BUDGET)(call)

    def pause(self, duration: timedelta) -> None:
        """Wait; TransientError once asked to stop."""
        self._pause(max(duration, _SHORTEST_PAUSE))
        if self.stop.requested:
            raise TransientError("asked to stop")


class Recheck:
    """Rechecks rows of one table and its mirror by their keys."""

    def __init__(
        self,
        source: SourceTables,
        mirrors: MirrorTables,
        plan: Plan,
        waits: Waits,
        table: Mirrored,
        mirror: FoundMirror,
    ) -> None:
        self._source = source
        self._mirrors = mirrors
        self._plan = plan
        self._waits = waits
        self._table = table
        self._mirror = mirror
        self._kinds = key_kinds(table.definition)
        self._why: dict[str, str] = {}

    def candidates(self, keys: pa.Table) -> Mapping[str, Candidate]:
        """Return rows by the texts of their keys, in the mirror's key columns."""
        keys = keys.select(list(self._kinds))
        found = map(Candidate, wire_keys(keys, self._kinds), keys.to_pylist())
        return dict(zip(self._texts(keys), found, strict=True))

    def _texts(self, rows: pa.Table) -> list[str]:
        """Return the text of each row's key."""
        columns = rows.select(list(self._kinds)).to_pylist()
        return [
            self._table.row_id(tuple(map(str, values.values())) if key is None else key)
            for key, values in zip(wire_keys(rows, self._kinds), columns, strict=True)
        ]

    def settle(self, rows: Mapping[str, Candidate], result: TableDifferences) -> None:
        """Recheck rows until it is known what they are, and add that to a result."""
        unsettled = UnsettledRows(rows, result.settle, self._waits.now())
        moved = start = self._waits.now()
        newest, state = "", None
        while True:
            while unsettled.open:
                began = self._waits.now()
                differing, read, progress = self.compare({row: rows[row] for row in unsettled.open})
                newest = progress.newest
                if progress.state != state:
                    state, moved = progress.state, moved if state is None else began
                unsettled.observe(differing, read, began)
                if unsettled.open:
                    self._waits.pause(result.settle)
            if not unsettled.standing:
                break
            now = self._waits.now()
            result.newest_applied = max(result.newest_applied, newest)
            if not is_behind(newest, unsettled.passed, Nanoseconds(now - moved), result.settle):
                break
            structlog.get_logger().info("mirror_is_behind", table=result.table, applied=newest, read=unsettled.passed)
            if now - start > nanoseconds(_BEHIND):
                result.behind += self._differences(unsettled.standing, rows)
                unsettled.standing.clear()
                break
            unsettled.reopen()
            self._waits.pause(result.settle)
        result.differences += self._differences(unsettled.standing, rows)
        result.changing += self._differences(unsettled.changing, rows)

    def until_equal(self, rows: Mapping[str, Candidate], timeout: timedelta) -> Mapping[str, ObservedDifference]:
        """Recheck rows until they are equal, or for a time; return those that are not."""
        end = self._waits.now() + nanoseconds(timeout)
        left, differing, pause = dict(rows), dict[str, ObservedDifference](), _FIRST_PAUSE
        while left:
            began = self._waits.now()
            differing = dict(self.compare(left)[0])
            left = {row: left[row] for row in differing}
            if began >= end:
                break
            if left:
                self._waits.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return differing

    def compare(self, rows: Mapping[str, Candidate]) -> tuple[Mapping[str, ObservedDifference], str, MirrorProgress]:
        """Recheck rows once, at the source first: return those that differ, the source's sequence, and the progress.

        The progress is the mirror's, by the sequences up to that of the source.
        """
        found, unfit, done = self._read_source([one.key for one in rows.values() if one.key is not None], rows)
        schema = pa.schema([self._table.schema.field(name) for name in self._kinds])
        fit_now = self.candidates(found)  # what could not be held at the first inspection may have changed
        asked = {row: fit_now.get(row, one) if one.columns is None else one for row, one in rows.items()}
        keys = pa.Table.from_pylist([dict(one.columns or {}) for one in asked.values() if one.askable], schema)
        there, progress = self._waits.retried(
            lambda: self._mirrors.recheck(self._table, self._mirror, keys, done.sequence)
        )
        applied = dict(zip(self._texts(there), there.column(SEQUENCE_COLUMN).to_pylist(), strict=True))
        compared = compare(self._table.definition, self._table.columns, found, there)
        names = self._texts(compared.keys)
        differing = {
            row: ObservedDifference(kind, applied.get(row, "")) for row, kind in zip(names, compared.kinds, strict=True)
        }
        for row, one in rows.items():
            if one.key is None or (one.columns is not None and not one.askable):  # it cannot be asked for: as it was
                differing[row] = ObservedDifference(DifferenceKind.EXTRA)
        for refused in unfit:
            row = self._table.row_id(refused.key)
            differing[row] = ObservedDifference(DifferenceKind.UNFIT, applied.get(row, ""))
            self._why[row] = refused.why
        return {row: seen for row, seen in differing.items() if row in rows}, done.sequence, progress

    def _read_source(
        self, keys: Sequence[Key], rows: Mapping[str, Candidate]
    ) -> tuple[pa.Table, Sequence[Unfit], Done]:
        name = self._table.header.table
        found, unfit, done = [self._table.schema.empty_table()], list[Unfit](), Done("", "")
        for start in range(0, len(keys), KEYS):
            some = keys[start : start + KEYS]
            batches, done = self._waits.retried(partial(self._source.read_keys, name, some))
            read, refused = source_rows(self._table, batches, self._plan)
            ids = {*self._texts(read), *(self._table.row_id(one.key) for one in refused)}
            if len(ids) != done.rows or done.rows + done.absent != len(some) or not ids <= rows.keys():
                raise MisconfiguredError(
                    "source-answers-do-not-add-up",
                    f"table {name}: the source was asked for {len(some)} keys, and answered with {len(ids)} rows and "
                    f"{done.absent} that are not there: what it says of keys cannot be relied on; use "
                    "the same version of Millrace for this command and the reader",
                )
            found.append(read)
            unfit += refused
        return pa.concat_tables(found), unfit, done

    def _differences(self, seen: Mapping[str, ObservedDifference], rows: Mapping[str, Candidate]) -> list[Difference]:
        return [Difference(row, one.kind, rows[row], one.applied, self._why.get(row, "")) for row, one in seen.items()]
