"""The rows of mirrors in BigQuery that are from before a time, or are not, buffered in a file: a page in memory."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    COMPLETE_SINCE,
    DEAD_LETTERS,
    READ_SINCE,
    change_labels,
    label_time,
    stays_pending,
    too_early,
    without_missing_rows,
)
from services.cdc_consumer.adapters.bigquery.mirror_queries import MirrorQueries, live
from services.cdc_consumer.adapters.bigquery.staleness import staleness_of
from services.cdc_consumer.adapters.schema.tables import check_dataset, is_of_key, primary_key_of, table_column
from services.cdc_consumer.core.delete_missing_rows.deletion import first_sequence, history_beside
from services.cdc_consumer.core.schema.tables import (
    COMMIT_TIMESTAMP_COLUMN,
    DELETED_COLUMN,
    TableColumn,
    TableDefinition,
)
from services.cdc_consumer.core.types.types import BOOL, INT64
from services.cdc_consumer.ports import MirrorTable, OtherRows, QueryEstimate, Recorded, RowBuffer
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF, SEQUENCE_COLUMN, label_of
from shared.runtime.retries import AttemptProgress, retrying
from shared.runtime.stop import Stop

_RETRY_BUDGET: Final = timedelta(minutes=5)
_WIDTH: Final = 67  # of a sequence as Millrace writes it: whose text sorts as it does
_OURS: Final = (SEQUENCE_COLUMN, COMMIT_TIMESTAMP_COLUMN, DELETED_COLUMN)
_OTHERS: Final = 100
"""How many of the other rows are read: the source has to have at least one of them."""
_OLDER_COLUMN: Final = "_millrace_older"
"""Whether a row that is read is from before the time; NULL: it is no row, and has the count."""
_COUNT_COLUMN: Final = "_millrace_count"
_ASIDE: Final = (TableColumn(_OLDER_COLUMN, BOOL), TableColumn(_COUNT_COLUMN, INT64))


class BigQueryMirrorRows:
    """The MirrorRows of one project."""

    def __init__(self, queries: MirrorQueries, project: str, dataset: str, stop: Stop, temporary: str = "") -> None:
        """``temporary``: the dataset that rows are copied into while they are read; each mirror's own if empty."""
        self._queries = queries
        self._project = project
        self._dataset = dataset
        self._stop = stop
        self._temporary = temporary and f"{project}.{temporary}"

    def find(self, name: str, dataset: str = "") -> MirrorTable:
        """Return a mirror as it is now; MisconfiguredError if there is none of that name."""
        path = f"{self._project}.{dataset or self._dataset}.{name}"
        found = self._table(path)
        if found is None:
            check_dataset(self._queries.client, self._project, dataset or self._dataset)
            raise MisconfiguredError(
                "mirror-missing",
                f"there is no table {path}: the consumer makes it with its first change; check BIGQUERY_DATASET",
            )
        mirror = _mirror(found, "" if dataset == self._dataset else dataset)
        return replace(mirror, history=self._history(mirror))

    def _history(self, mirror: MirrorTable) -> TableDefinition | None:
        """Return the history beside a mirror; None if none of the same source table is there."""
        wanted = history_beside(mirror.definition)
        path = f"{self._project}.{wanted.dataset or self._dataset}.{wanted.name}"
        found = self._table(path)
        if found is None or found.labels.get(HISTORY_OF) != mirror.label:
            return None
        if not is_of_key(found, wanted.primary_key):
            fix = (
                "it belongs together by another key than its mirror's: copy it by CREATE TABLE ... AS SELECT, then "
                "drop it, so that it is made again"
            )
            structlog.get_logger().warning("history_deletion_skipped", table=wanted.identity, fix=fix)
            return None
        return wanted

    def older(self, mirror: MirrorTable, before: int, into: RowBuffer) -> OtherRows:
        """Put the rows from before a time into a buffer; as `MirrorRows.older`."""
        key = [(name, "ascending") for name in mirror.definition.primary_key]
        progress, path, columns = AttemptProgress(), self._path(mirror), _columns(mirror)
        read = [*columns, *_ASIDE]
        with self._queries.copied(path, _select(mirror, path, before), read, self._temporary) as copied:
            for attempt in retrying(self._stop, _RETRY_BUDGET, progress=progress):
                with attempt:
                    into.clear()
                    rows, some = 0, [pa.schema([(each.name, each.type.wire) for each in columns]).empty_table()]
                    for number, page in enumerate(copied.pages(), 1):
                        progress.reached(number)
                        older, counts = page.column(_OLDER_COLUMN), page.column(_COUNT_COLUMN)
                        page_of_columns = page.select([column.name for column in columns])
                        into.add(page_of_columns.filter(pc.fill_null(older, False)).sort_by(key))
                        some.append(page_of_columns.filter(pc.fill_null(pc.invert(older), False)))
                        rows += pc.sum(counts).as_py() or 0
                        if self._stop.requested:
                            raise TransientError("asked to stop")
        return OtherRows(rows, pa.concat_tables(some))

    def count_older(self, mirror: MirrorTable, before: int) -> int:
        """Count the rows from before a time; as `MirrorRows.count_older`."""
        path, retry = (
            self._path(mirror),
            retrying(self._stop, _RETRY_BUDGET, progress=AttemptProgress()),
        )  # it may take an hour
        (counted,) = retry(self._queries.rows, path, _count(mirror, path, before))
        return int(counted["f"][0]["v"])

    def estimate(self, mirror: MirrorTable, before: int) -> QueryEstimate:
        """Return what BigQuery expects to read of a mirror whose missing rows are deleted."""
        path = self._path(mirror)
        queries = _select(mirror, path, before), _count(mirror, path, before)
        estimate = partial(self._queries.estimate, path)
        return retrying(self._stop, _RETRY_BUDGET)(lambda: QueryEstimate(*map(estimate, queries)))

    def record_deletion(self, mirror: MirrorTable, before: int, announced_by: int) -> Recorded:
        """Let the mirror say so; as `MirrorRows.record_deletion`."""
        early = wanted = pending = False

        def labels(found: bigquery.Table) -> Mapping[str, str | None] | None:
            nonlocal early, wanted, pending
            early, pending = too_early(found.labels, announced_by), stays_pending(found.labels, before)
            changed = None if early else without_missing_rows(found.labels, before)
            wanted = changed is not None
            return changed

        retry, path = retrying(self._stop, _RETRY_BUDGET), self._path(mirror)
        written = retry(change_labels, self._queries.client, path, labels)
        if early:
            return "early"
        if wanted and not written:
            return "not labelled"
        return "still pending" if pending else "recorded"

    def _table(self, path: str) -> bigquery.Table | None:
        return retrying(self._stop, _RETRY_BUDGET)(self._queries.table, path)

    def _path(self, mirror: MirrorTable) -> str:
        return f"{self._project}.{mirror.definition.dataset or self._dataset}.{mirror.definition.name}"


def _columns(mirror: MirrorTable) -> Sequence[TableColumn]:
    return [column for column in mirror.definition.columns if column.name not in _OURS]


def _select(mirror: MirrorTable, path: str, before: int) -> str:
    """Return the query of the rows from before a time, of some others, and of how many rows there are: each marked."""
    columns, older, there = _columns(mirror), _older(before), live(mirror.soft_delete)
    named = ", ".join(f"t.`{column.name}`" for column in columns)
    nothing = ", ".join(f"CAST(NULL AS {column.type.bigquery}) AS `{column.name}`" for column in columns)
    rows = f"FROM `{path}` AS t WHERE {there}"
    return (
        f"SELECT {named}, TRUE AS `{_OLDER_COLUMN}`, CAST(NULL AS INT64) AS `{_COUNT_COLUMN}` {rows} AND {older} "
        f"UNION ALL (SELECT {named}, FALSE, NULL {rows} AND NOT {older} LIMIT {_OTHERS}) "
        f"UNION ALL SELECT {nothing}, NULL, COUNT(*) {rows}"
    )


def _count(mirror: MirrorTable, path: str, before: int) -> str:
    return f"SELECT COUNT(*) FROM `{path}` AS t WHERE {_older(before)} AND {live(mirror.soft_delete)}"  # noqa: S608


def _older(before: int) -> str:
    """Return the condition of rows from before a time.

    Rows without a sequence were there before Millrace; one of another form is not ours to judge by its text.
    """
    sequence = f"t.`{SEQUENCE_COLUMN}`"
    return f"({sequence} IS NULL OR (LENGTH({sequence}) = {_WIDTH} AND {sequence} < '{first_sequence(before)}'))"


def _mirror(found: bigquery.Table, dataset: str) -> MirrorTable:
    """Return what is to be known of a table; MisconfiguredError if it is no mirror with rows to delete."""
    path, names, key = str(found.reference), {field.name for field in found.schema}, primary_key_of(found)
    if MIRROR_OF not in found.labels or SEQUENCE_COLUMN not in names or not key:
        raise MisconfiguredError(
            "not-a-mirror", f"table {path} is no mirror: it has no label {MIRROR_OF}, no key or no sequences"
        )
    soft_delete = DELETED_COLUMN in names
    wanted = {name for name in names if soft_delete} | {*key, *_OURS}
    columns = tuple(
        column for field in found.schema if field.name in wanted and (column := table_column(field)) is not None
    )
    definition = TableDefinition(found.table_id, columns, key, _source_of(found), dataset)
    return MirrorTable(
        definition,
        str(found.labels[MIRROR_OF]),
        soft_delete,
        label_time(found.labels, COMPLETE_SINCE),
        staleness_of(found),
        read_since=label_time(found.labels, READ_SINCE),
        dead_letters_until=label_time(found.labels, DEAD_LETTERS),
    )


def _source_of(found: bigquery.Table) -> str:
    """Return the source table that a mirror is of, if its description still names that; else what its label says."""
    label = str(found.labels[MIRROR_OF])
    named = (found.description or "").removeprefix("Mirror of ").removesuffix(", kept by Millrace")
    return named if label_of(named) == label else label


class DiskRowBuffer:
    """The RowBuffer in a directory that nothing else is in."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rows.arrow"
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Take some rows."""
        if len(rows) == 0:
            return
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._path, rows.schema)
        self._writer.write_table(rows.combine_chunks())
        self.rows += len(rows)

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows, as many at a time as were added."""
        if self.rows == 0:
            return
        self.close()
        with pa.memory_map(str(self._path)) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def clear(self) -> None:
        """Forget all rows."""
        self.close()
        self._path.unlink(missing_ok=True)
        self.rows = 0

    def close(self) -> None:
        """Write what is held; then no more can be added."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def disk_row_buffer() -> Iterator[DiskRowBuffer]:
    """Make room for rows, for the block."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-missing-rows-") as directory,
        closing(DiskRowBuffer(Path(directory))) as rows,
    ):
        yield rows
