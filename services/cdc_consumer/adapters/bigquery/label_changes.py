"""Labels of BigQuery tables, changed as they are found: whoever else changes the table meanwhile keeps what it did."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog
from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import beyond_limits, rest_errors
from services.cdc_consumer.ports import TableTroubleError

_TIMEOUT: Final = 30.0  # seconds for a call
_NO_RETRY: Final[Any] = None  # retries are not nested
_ATTEMPTS: Final = 5  # others may alter the table at the same time, but not for ever


class NoTableError(TableTroubleError):
    """There is no such table, at least not yet."""


def change_labels(
    client: bigquery.Client, path: str, change: Callable[[bigquery.Table], Mapping[str, str | None] | None]
) -> bool:
    """Give a table the labels that ``change`` makes of it as it is, and tell whether it has new ones.

    None is to leave it as it is; a label that is None goes. TransientError, TableTroubleError or NoTableError where
    that cannot be done now. Where labels may not be written at all, that is said in the log.
    """
    for _attempt in range(_ATTEMPTS):
        with rest_errors(f"table {path}"):
            try:
                found = client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT)
            except exceptions.NotFound as error:
                raise NoTableError(f"there is no table {path}") from error
            labels = change(found)
            if labels is None:
                return False
            with suppress(exceptions.Conflict, exceptions.PreconditionFailed):
                return labelled(client, found, labels) is not None
    raise TableTroubleError(f"table {path}: altered by others all the time")


def labelled(client: bigquery.Client, found: bigquery.Table, labels: Mapping[str, str | None]) -> bigquery.Table | None:
    """Give a table labels, and return it with them; None, which is said in the log, where they may not be written.

    The client's errors: Conflict or PreconditionFailed where another has changed the table since it was read, Forbidden
    where so many have that BigQuery takes no more of it for now.
    """
    found.labels = labels
    try:
        return client.update_table(found, ["labels"], retry=_NO_RETRY, timeout=_TIMEOUT)
    except exceptions.Forbidden as error:
        if beyond_limits(error):
            raise
        structlog.get_logger().warning("table_not_labelled", table=str(found.reference), error=str(error.message))
        return None
