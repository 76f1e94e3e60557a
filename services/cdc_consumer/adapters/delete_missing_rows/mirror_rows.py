"""The rows of mirrors in BigQuery that are from before a time, or are not, spooled to a file: a page in memory."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    COMPLETE_SINCE,
    LETTERS,
    READ_SINCE,
    change_labels,
    label_time,
    swept,
    too_early,
)
from services.cdc_consumer.adapters.bigquery.mirror_queries import MirrorQueries, live
from services.cdc_consumer.adapters.bigquery.staleness import staleness_of
from services.cdc_consumer.adapters.schema.tables import HISTORY_KEY, check_dataset, key_label, table_column
from services.cdc_consumer.core.delete_missing_rows.sweep import first_sequence, history_beside
from services.cdc_consumer.core.schema.tables import (
    COMMIT_TIMESTAMP_COLUMN,
    DELETED_COLUMN,
    TableColumn,
    TableDefinition,
)
from services.cdc_consumer.ports import MirrorTable, RowCount, Spool
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF, SEQUENCE_COLUMN, label_of
from shared.runtime.retries import Headway, retrying
from shared.runtime.stop import Stop

_RETRY_BUDGET: Final = timedelta(minutes=5)
_WIDTH: Final = 67  # of a sequence as Millrace writes it: whose text sorts as it does
_OURS: Final = (SEQUENCE_COLUMN, COMMIT_TIMESTAMP_COLUMN, DELETED_COLUMN)
_OLDER: Final = (
    f"(t.`{SEQUENCE_COLUMN}` IS NULL OR (LENGTH(t.`{SEQUENCE_COLUMN}`) = {_WIDTH} AND t.`{SEQUENCE_COLUMN}` < @before))"
)
"""Rows without a sequence were there before Millrace; one of another form is not ours to judge by its text."""


class BigQueryMirrorRows:
    """The MirrorRows of one project."""

    def __init__(self, client: bigquery.Client, project: str, dataset: str, stop: Stop) -> None:
        self._client = client
        self._queries = MirrorQueries(client)
        self._project = project
        self._dataset = dataset
        self._stop = stop

    def find(self, name: str, dataset: str = "") -> MirrorTable:
        """Return a mirror as it is now; MisconfiguredError if there is none of that name."""
        path = f"{self._project}.{dataset or self._dataset}.{name}"
        found = self._table(path)
        if found is None:
            check_dataset(self._client, self._project, dataset or self._dataset)
            raise MisconfiguredError(f"there is no table {path}")
        mirror = _mirror(found, "" if dataset == self._dataset else dataset)
        return replace(mirror, history=self._history(mirror))

    def _history(self, mirror: MirrorTable) -> TableDefinition | None:
        """Return the history beside a mirror; None if none of the same source table is there."""
        wanted = history_beside(mirror.definition)
        path = f"{self._project}.{wanted.dataset or self._dataset}.{wanted.name}"
        found = self._table(path)
        if found is None or found.labels.get(HISTORY_OF) != mirror.label:
            return None
        if found.labels.get(HISTORY_KEY) != key_label(wanted.primary_key):
            fix = "it belongs together by another key than its mirror's: rename it, so that it is made anew"
            structlog.get_logger().warning("history_not_swept", table=wanted.identity, fix=fix)
            return None
        return wanted

    def older(self, mirror: MirrorTable, before: int, into: Spool) -> None:
        """Put the rows from before a time into a spool; as `MirrorRows.older`."""
        key = [(name, "ascending") for name in mirror.definition.primary_key]
        headway = Headway()
        for attempt in retrying(self._stop, _RETRY_BUDGET, headway=headway):
            with attempt:
                into.clear()
                for page, rows in enumerate(self._asked(mirror, _OLDER, before), 1):
                    headway.reached(page)
                    into.add(rows.sort_by(key))
                    if self._stop.requested:
                        raise TransientError("asked to stop")

    def newer(self, mirror: MirrorTable, since: int, most: int) -> pa.Table:
        """Return some of the others; as `MirrorRows.newer`."""
        for attempt in retrying(self._stop, _RETRY_BUDGET, headway=Headway()):  # of a query, which may take an hour
            with attempt:
                some = list(self._asked(mirror, f"NOT {_OLDER}", since, f" LIMIT {most}"))
        nothing = pa.schema([(column.name, column.type.wire) for column in _columns(mirror)]).empty_table()
        return pa.concat_tables([nothing, *some])

    def count(self, mirror: MirrorTable, before: int) -> RowCount:
        """Count them; as `MirrorRows.count`."""
        path = self._path(mirror)
        counts = f"COUNTIF({_OLDER}) AS older, COUNT(*) AS n"
        query = f"SELECT {counts} FROM `{path}` AS t WHERE {live(mirror.soft_delete)}"  # noqa: S608  names
        for attempt in retrying(self._stop, _RETRY_BUDGET, headway=Headway()):
            with attempt:
                ((counted,),) = self._queries.pages(path, query, [_limit(before)])
        older, rows = (int(cell["v"]) for cell in counted["f"])
        return RowCount(older, rows)

    def mark_swept(self, mirror: MirrorTable, before: int, told_by: int) -> bool:
        """Let the mirror say that it is swept; as `MirrorRows.mark_swept`."""
        early = False

        def labels(found: bigquery.Table) -> Mapping[str, str | None] | None:
            nonlocal early
            early = too_early(found.labels, told_by)
            return None if early else swept(found.labels, before)

        for attempt in retrying(self._stop, _RETRY_BUDGET):
            with attempt:
                change_labels(self._client, self._path(mirror), labels)
        return not early

    def _asked(self, mirror: MirrorTable, which: str, before: int, limit: str = "") -> Iterator[pa.Table]:
        path, columns = self._path(mirror), _columns(mirror)
        named = ", ".join(f"t.`{column.name}`" for column in columns)
        where = f"{which} AND {live(mirror.soft_delete)}{limit}"
        query = f"SELECT {named} FROM `{path}` AS t WHERE {where}"  # noqa: S608  names
        yield from self._queries.tables(path, query, columns, [_limit(before)])

    def _table(self, path: str) -> bigquery.Table | None:
        for attempt in retrying(self._stop, _RETRY_BUDGET):
            with attempt:
                found = self._queries.table(path)
        return found

    def _path(self, mirror: MirrorTable) -> str:
        return f"{self._project}.{mirror.definition.dataset or self._dataset}.{mirror.definition.name}"


def _columns(mirror: MirrorTable) -> Sequence[TableColumn]:
    return [column for column in mirror.definition.columns if column.name not in _OURS]


def _limit(before: int) -> bigquery.ScalarQueryParameter:
    return bigquery.ScalarQueryParameter("before", "STRING", first_sequence(before))


def _mirror(found: bigquery.Table, dataset: str) -> MirrorTable:
    """Return what is to be known of a table; MisconfiguredError if it is no mirror that can be swept."""
    path, names = str(found.reference), {field.name for field in found.schema}
    constraints = found.table_constraints
    key = tuple(constraints.primary_key.columns) if constraints is not None and constraints.primary_key else ()
    if MIRROR_OF not in found.labels or SEQUENCE_COLUMN not in names or not key:
        raise MisconfiguredError(f"table {path} is no mirror: it has no label {MIRROR_OF}, no key or no sequences")
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
        letters_until=label_time(found.labels, LETTERS),
    )


def _source_of(found: bigquery.Table) -> str:
    """Return the source table that a mirror is of, if its description still names that; else what its label says."""
    label = str(found.labels[MIRROR_OF])
    named = (found.description or "").removeprefix("Mirror of ").removesuffix(", kept by Millrace")
    return named if label_of(named) == label else label


class SpooledRows:
    """The Spool in a directory that nothing else is in."""

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
def spooled() -> Iterator[SpooledRows]:
    """Make room for rows, for the block."""
    with tempfile.TemporaryDirectory(prefix="millrace-sweep-") as directory:
        rows = SpooledRows(Path(directory))
        try:
            yield rows
        finally:
            rows.close()
