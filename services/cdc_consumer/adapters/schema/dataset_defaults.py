"""What a dataset gives to the tables that are made in it, and a mirror must not have: expiry, and collation.

Source: BigQuery REST reference, `Dataset` and `Table`: a default expiration becomes the table's `expirationTime`, or
its partitions' `timePartitioning.expirationMs`, which a patch with null takes off; `defaultCollation` of a table, ""
for case-sensitive, comes before that of its dataset. With `und:ci` the keys `a` and `A` are one key.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import structlog
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import update_fields
from services.cdc_consumer.adapters.bigquery.unanswered import TableClient

_DAY: Final = 86_400_000
_NEAR: Final = timedelta(minutes=1)
"""How far apart the two times may be that BigQuery gives a table when it is made."""


def dataset_defaults(dataset: bigquery.Dataset) -> Mapping[str, str]:
    """Return what a dataset gives to its tables that a mirror must not have, by the option of `bq update`."""
    defaults = {
        "default_table_expiration": _days(dataset.default_table_expiration_ms),
        "default_partition_expiration": _days(dataset.default_partition_expiration_ms),
        "default_collation": default_collation(dataset),
    }
    return {name: value for name, value in defaults.items() if value}


def default_collation(dataset: bigquery.Dataset) -> str:
    """Return the collation of tables that are made in a dataset; "" where upper and lower case differ."""
    return str(dataset.to_api_repr().get("defaultCollation") or "")


def case_sensitive(table: bigquery.Table) -> bigquery.Table:
    """Return a table that is to be made, without the collation of its dataset."""
    return bigquery.Table.from_api_repr({**table.to_api_repr(), "defaultCollation": ""})


def collated(field: bigquery.SchemaField) -> bool:
    """Return whether a column does not distinguish upper from lower case."""
    return bool(field.to_api_repr().get("collation"))


def lasting(client: TableClient, made: bigquery.Table, keep: timedelta | None = None) -> bigquery.Table:
    """Take the expiry off a table or view that its dataset has given one, and return it as it is.

    But not that of partitions where there is a time to ``keep`` them.
    """
    fields = expiring(made, keep)
    if not fields:
        return made
    made.expires = None
    if (partitioning := made.time_partitioning) is not None and keep is None:
        partitioning.expiration_ms = None
        made.time_partitioning = partitioning
    changed = update_fields(client, made, fields)
    if isinstance(changed, str):  # a project without billing: there everything expires
        report_expiry(made, error=changed)
        return made
    return changed


def of_its_dataset(found: bigquery.Table, dataset: bigquery.Dataset) -> bool:
    """Return whether a table has the expiry that its dataset gives new tables: the call that removes it last failed.

    Another expiry was set by hand, on purpose.
    """
    expires, after = found.expires, dataset.default_table_expiration_ms
    if expires is not None and (after is None or abs(expires - found.created - timedelta(milliseconds=after)) > _NEAR):
        return False
    partitioning = found.time_partitioning
    of_partitions = None if partitioning is None else partitioning.expiration_ms
    return of_partitions in (None, dataset.default_partition_expiration_ms)


def warn_of_expiry(found: bigquery.Table, keep: timedelta | None = None) -> None:
    """Report that BigQuery is going to delete a table, or its partitions, and with them what was applied."""
    if expiring(found, keep):
        report_expiry(found)


def report_expiry(found: bigquery.Table, **error: str) -> None:
    """Report that a table or view expires, with the command that changes it."""
    name = f"{found.project}:{found.dataset_id}.{found.table_id}"
    structlog.get_logger().error(
        "table_expires",
        table=str(found.reference),
        fix=f"bq update --expiration 0 {name}; partitions: bq update --time_partitioning_expiration 0 {name}",
        **error,
    )


def expiring(table: bigquery.Table, keep: timedelta | None = None) -> list[str]:
    """Return the fields by which a table, or its partitions where nothing is said to ``keep`` them, come to an end."""
    partitioning = table.time_partitioning
    expires = {
        "expires": table.expires is not None,
        "time_partitioning": keep is None and partitioning is not None and partitioning.expiration_ms is not None,
    }
    return [name for name, does in expires.items() if does]


def kept_as_long(table: bigquery.Table, keep: timedelta | None) -> bool:
    """Return whether a table's partitions last as long as they should; where nothing is said of it, any is right."""
    partitioning = table.time_partitioning
    return keep is None or (partitioning is not None and partitioning.expiration_ms == milliseconds(keep))


def milliseconds(keep: timedelta | None) -> int | None:
    """Return a duration as the API writes an expiry."""
    return None if keep is None else keep // timedelta(milliseconds=1)


def _days(milliseconds: int | None) -> str:
    return f"{milliseconds / _DAY:g} days" if milliseconds else ""
