"""What the mirrors of a dataset say of themselves by their labels: one cheap call, for `status`."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from datetime import datetime
from typing import Any, Final

from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import rest_errors
from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    COMPLETE_SINCE,
    MISSING_ROWS_DELETED,
    NEEDS_RESYNC,
    change_labels,
    label_time,
    recreated,
)
from services.cdc_consumer.adapters.bigquery.staleness import read_watermarks
from services.cdc_consumer.ports import Mirror, PartlyListedError, TableTroubleError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import MIRROR_OF

_TIMEOUT: Final = 3.0  # seconds: a client waits for the answer
_QUERY_TIMEOUT: Final = 60.0  # seconds: of a thread of its own
_NO_RETRY: Final[Any] = None


def read_mirrors(client: bigquery.Client, project: str, datasets: Iterable[str]) -> Sequence[Mirror]:
    """Return the mirrors of some datasets; those of all but the first are named by it, too, and it may be gone.

    TransientError or TableTroubleError where those of the first cannot be listed now, PartlyListedError where those of
    others cannot.
    """
    mirrors: list[Mirror] = []
    errors: dict[str, str] = {}
    for number, dataset in enumerate(datasets):
        try:
            mirrors += _mirrors(client, project, dataset, f"{dataset}." if number else "")
        except (TransientError, MisconfiguredError) as error:
            if not number:
                raise
            errors[dataset] = str(error)
    if errors:
        raise PartlyListedError("; ".join(errors.values()), mirrors, errors.keys())
    return mirrors


def _mirrors(client: bigquery.Client, project: str, dataset: str, prefix: str) -> Sequence[Mirror]:
    with rest_errors(f"tables of {project}.{dataset}"):
        try:
            return [
                Mirror(
                    prefix + one.table_id,
                    round(one.created.timestamp() * 1e6),
                    one.labels.get(NEEDS_RESYNC, ""),
                    complete_since=label_time(one.labels, COMPLETE_SINCE),
                    deleted_before=label_time(one.labels, MISSING_ROWS_DELETED),
                )
                for one in client.list_tables(f"{project}.{dataset}", retry=_NO_RETRY, timeout=_TIMEOUT)
                if MIRROR_OF in one.labels
            ]
        except exceptions.NotFound:
            if not prefix:
                raise
            return []  # its tables' trouble is reported for them


def mirror_watermarks(
    client: bigquery.Client, project: str, dataset: str, mirrors: Iterable[Mirror]
) -> Mapping[str, datetime]:
    """Return up to when BigQuery has applied what was written to some mirrors, by the names that they have here.

    ``dataset`` is that of mirrors without one in their name. TransientError or TableTroubleError where it cannot be
    asked.
    """
    names = {mirror.table if "." in mirror.table else f"{dataset}.{mirror.table}": mirror.table for mirror in mirrors}
    found: dict[str, datetime] = {}
    for each in sorted({name.partition(".")[0] for name in names}):
        with rest_errors(f"watermarks of {project}.{each}"):
            try:
                watermarks = read_watermarks(client, f"{project}.{each}", _QUERY_TIMEOUT)
            except futures.TimeoutError as error:
                raise TransientError(f"watermarks of {project}.{each}: no answer in time") from error
        found |= {names[f"{each}.{table}"]: at for table, at in watermarks.items() if f"{each}.{table}" in names}
    return found


def label_recreated(client: bigquery.Client, project: str, dataset: str, mirror: Mirror) -> None:
    """Request a resync of a recreated mirror by its label. TransientError or TableTroubleError where it cannot now."""
    path = f"{project}.{mirror.table}" if "." in mirror.table else f"{project}.{dataset}.{mirror.table}"
    if not change_labels(client, path, lambda found: recreated(found.labels)):
        raise TableTroubleError(f"table {path}: its labels may not be written")
