"""What the mirrors of a dataset say of themselves by their labels: one cheap call, for `status`."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final

from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import rest_errors
from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    COMPLETE_SINCE,
    NEEDS_RESYNC,
    SWEPT,
    change_labels,
    label_time,
    made_anew,
)
from services.cdc_consumer.ports import Mirror, TableTroubleError
from shared.contracts.mirrors import MIRROR_OF

_TIMEOUT: Final = 3.0  # seconds: a client waits for the answer
_NO_RETRY: Final[Any] = None


def read_mirrors(client: bigquery.Client, project: str, datasets: Iterable[str]) -> Sequence[Mirror]:
    """Return the mirrors of some datasets; those of all but the first are named by it, too, and it may be gone.

    TransientError or TableTroubleError where they cannot be listed now.
    """
    mirrors = []
    for number, dataset in enumerate(datasets):
        prefix = f"{dataset}." if number else ""
        with rest_errors(f"tables of {project}.{dataset}"):
            listed = client.list_tables(f"{project}.{dataset}", retry=_NO_RETRY, timeout=_TIMEOUT)
            with suppress(exceptions.NotFound) if number else nullcontext():  # its tables' trouble is reported for them
                mirrors += [
                    Mirror(
                        prefix + one.table_id,
                        round(one.created.timestamp() * 1e6),
                        one.labels.get(NEEDS_RESYNC, ""),
                        complete_since=label_time(one.labels, COMPLETE_SINCE),
                        swept=label_time(one.labels, SWEPT),
                    )
                    for one in listed
                    if MIRROR_OF in one.labels
                ]
    return mirrors


def label_recreated(client: bigquery.Client, project: str, dataset: str, mirror: Mirror) -> None:
    """Request a resync of a recreated mirror by its label. TransientError or TableTroubleError where it cannot now."""
    path = f"{project}.{mirror.table}" if "." in mirror.table else f"{project}.{dataset}.{mirror.table}"
    if not change_labels(client, path, lambda found: made_anew(found.labels)):
        raise TableTroubleError(f"table {path}: its labels may not be written")
