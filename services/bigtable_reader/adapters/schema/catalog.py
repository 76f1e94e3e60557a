"""What the instance says of a table, an app profile and its clusters: the admin API."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import grpc
import structlog
from google.cloud.bigtable_admin_v2.types import AppProfile as AdminAppProfile
from google.cloud.bigtable_admin_v2.types import GetAppProfileRequest, GetTableRequest
from google.cloud.bigtable_admin_v2.types import Table as AdminTable

from services.bigtable_reader.adapters.bigtable.connection import TIMEOUT, BigtableChannels, Table
from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from services.bigtable_reader.core.schema.seen import ANY, InspectedTable
from services.bigtable_reader.core.stream.partitions import RESTART_AFTER_LOST_CHANGES
from services.bigtable_reader.ports import StreamGoneError
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.errors import status_of

_GET_TABLE: Final = "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable"
_GET_PROFILE: Final = "/google.bigtable.admin.v2.BigtableInstanceAdmin/GetAppProfile"
_FULL: Final = int(AdminTable.View.FULL)
_MAY_NOT: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TableInspection:
    """What a table is like now, except its rows: no record of its change stream contains it."""

    families: frozenset[str]
    clusters: frozenset[str]
    """Where it is replicated to; empty where that is not known (an emulator)."""
    retention: timedelta | None
    """How long its change stream is kept; None: it has none."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How an app profile routes."""

    cluster: str | None
    """The one cluster that it routes to; None: any."""
    transactional: bool
    data_boost: bool = False
    """Whether it reads without the cluster's nodes."""


class BigtableCatalog:
    """Inspects one table and the app profile that it is reached through."""

    def __init__(self, channels: BigtableChannels, table: Table) -> None:
        self._channels = channels
        self._table = table
        self._reported = False
        """Whether it is logged that the app profile cannot be read."""

    async def seen(self) -> InspectedTable:
        """Return what no record of the change stream contains; StreamGoneError without a stream. MisconfiguredError."""
        inspection = await self.inspect()
        if inspection.retention is None:
            raise StreamGoneError(
                "bigtable-stream-gone",
                f"table {self._table.id} no longer has a change stream: changes made without it are in no record. The "
                "stored positions belong to the old stream, even if the table gets a new one. "
                f"{RESTART_AFTER_LOST_CHANGES}\n{enabling(self._table)}",
            )
        try:
            routed_to = (await self.profile()).cluster or ANY
        except MisconfiguredError as error:
            self._report_unseen(error)
            routed_to = None
        return InspectedTable(inspection.families, inspection.clusters, inspection.retention.total_seconds(), routed_to)

    def _report_unseen(self, error: MisconfiguredError) -> None:
        """Log once that this identity may not read the app profile. One that is gone shows at the next call."""
        log = structlog.get_logger()
        if self._reported or status_of(error.__cause__)[0] not in _MAY_NOT:
            log.debug("app_profile_not_seen", error=str(error))
            return
        self._reported = True
        log.warning(
            "app_profile_not_seen",
            error=str(error),
            why="a stream goes on from one cluster only, and no error shows when the profile routes to another",
            fix="grant roles/bigtable.viewer on the instance, or make sure of it",
        )

    async def inspect(self) -> TableInspection:
        """Return what the table is like. TransientError, MisconfiguredError."""
        request = GetTableRequest.pb()(name=self._table.name, view=_FULL)
        found = await self._ask(_GET_TABLE, request, AdminTable.pb(), f"inspect table {self._table.name}")
        kept = found.change_stream_config.retention_period
        period = timedelta(seconds=kept.seconds) + kept.nanos // 1000 * _MICROSECOND
        return TableInspection(
            families=frozenset(found.column_families),
            clusters=frozenset(found.cluster_states),
            retention=period if found.HasField("change_stream_config") and period else None,
        )

    async def profile(self) -> Profile:
        """Return how the table's app profile routes. TransientError; MisconfiguredError, also if it may not be read."""
        name = f"{self._table.instance}/appProfiles/{self._table.app_profile or 'default'}"
        request = GetAppProfileRequest.pb()(name=name)
        found = await self._ask(_GET_PROFILE, request, AdminAppProfile.pb(), f"inspect app profile {name}")
        if found.WhichOneof("routing_policy") != "single_cluster_routing":
            return Profile(None, transactional=False)
        routing = found.single_cluster_routing
        return Profile(
            routing.cluster_id,
            transactional=routing.allow_transactional_writes,
            data_boost=found.WhichOneof("isolation") == "data_boost_isolation_read_only",
        )

    async def _ask(self, method: str, request: Any, answer: Any, what: str) -> Any:
        with bigtable_errors(what):
            ask = self._channels.admin.unary_unary(
                method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
            )
            routing = [("x-goog-request-params", f"name={quote(request.name, '')}")]
            return await ask(request, metadata=routing, timeout=TIMEOUT)


def enabling(table: Table) -> str:
    """Return how a table gets a change stream, or a longer one."""
    return (
        f"gcloud bigtable instances tables update {table.id} --instance={table.instance.rpartition('/')[2]} "
        f"--project={table.instance.split('/')[1]} --change-stream-retention-period=7d"
    )
