"""The partition table itself: made if it is missing, and refused if it would lose what is written to it."""

import asyncio
from typing import Any, Final

import structlog
from google.api_core.exceptions import AlreadyExists, NotFound
from google.cloud.bigtable_admin_v2 import BigtableTableAdminAsyncClient
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcAsyncIOTransport,
)

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from services.bigtable_reader.adapters.stream.partition_cells import FAMILIES
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from shared.contracts.errors import MisconfiguredError

_TIMEOUT: Final = 60.0
_SOON: Final = 30
"""Seconds until a table that was made is there for everybody."""


async def partition_table_exists(channels: BigtableChannels, table: Table) -> bool:
    """Return whether there is a table of that name. TransientError, MisconfiguredError."""
    with bigtable_errors(f"partition table {table.name}"):
        try:
            await _admin(channels).get_table(name=table.name, retry=None, timeout=_TIMEOUT)
        except NotFound:
            return False
    return True


async def create_partition_table(channels: BigtableChannels, rows: PartitionRows) -> None:
    """Make the table unless it is there; the right to make tables is needed only then.

    MisconfiguredError if a table of that name is something else, or has a rule that deletes cells by their age.
    TransientError.
    """
    table, client = rows.table, _admin(channels)
    with bigtable_errors(f"partition table {table.name}"):
        try:
            found = await client.get_table(name=table.name, retry=None, timeout=_TIMEOUT)
        except NotFound:
            found = await _create(client, table)
    _check(table, {name: family.gc_rule for name, family in found.column_families.items()})
    await _until_readable(rows)


def _admin(channels: BigtableChannels) -> BigtableTableAdminAsyncClient:
    return BigtableTableAdminAsyncClient(transport=BigtableTableAdminGrpcAsyncIOTransport(channel=channels.admin))


async def _create(client: BigtableTableAdminAsyncClient, table: Table) -> Any:
    families = {name: {"gc_rule": {"max_num_versions": 1}} for name in FAMILIES}
    request = {"parent": table.instance, "table_id": table.id, "table": {"column_families": families}}
    try:
        made = await client.create_table(request=request, retry=None, timeout=_TIMEOUT)
    except AlreadyExists:  # another reader, that starts as we do
        return await client.get_table(name=table.name, retry=None, timeout=_TIMEOUT)
    structlog.get_logger().info("partition_table_created", table=table.name)
    return made


def _check(table: Table, rules: dict[str, Any]) -> None:
    if missing := sorted(set(FAMILIES) - rules.keys()):
        raise MisconfiguredError(
            "not-a-partition-table",
            f"{table.name} is no partition table (column families {', '.join(missing)} are missing): name another by "
            "PARTITION_TABLE, or none at all, and it is made",
        )
    for family in FAMILIES:
        if _deletes_by_age(rules[family]):
            raise MisconfiguredError(
                "partition-table-collects-garbage",
                f"{table.name} deletes old cells, by the garbage collection rule of column family {family}. Readers "
                "need every cell until it is replaced. Make the rule maxversions=1",
            )


def _deletes_by_age(rule: Any) -> bool:
    """Return whether a cell may go though it is the newest of its column."""
    both = rule.intersection.rules
    return (
        "max_age" in rule
        or any(map(_deletes_by_age, rule.union.rules))
        or (bool(both) and all(map(_deletes_by_age, both)))
    )


async def _until_readable(rows: PartitionRows) -> None:
    for second in range(_SOON + 1):
        try:
            await rows.topology()
        except MisconfiguredError as error:
            if second == _SOON or "NOT_FOUND" not in str(error):
                raise
            await asyncio.sleep(1)
        else:
            return
