"""What a `doctor` inspects for those who read a mirror: whether they can now, and what each of their queries reads.

Source: BigQuery, "Stream table updates with change data capture", sections "Limitations" (no Storage Read API for a
table that has to merge when it is queried) and "Estimate BigQuery CDC ingestion costs" (such a query reads all of it).
"""

from collections.abc import Iterator
from typing import Any, Final

import grpc
from google.api_core.gapic_v1 import routing_header
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1.types import CreateReadSessionRequest, DataFormat, ReadSession

from services.cdc_consumer.adapters.bigquery.staleness import staleness_of
from shared.contracts.durations import format_duration
from shared.contracts.mirrors import MIRROR_OF
from shared.contracts.sizes import format_size
from shared.pubsub.errors import status_of
from shared.runtime.findings import Finding

LARGE: Final = 10_000_000_000
"""Bytes of a mirror whose queries should not read all of it each."""
_TIMEOUT: Final = 10.0  # seconds
_CREATE_READ_SESSION: Final = "/google.cloud.bigquery.storage.v1.BigQueryRead/CreateReadSession"
_NOT_FRESH: Final = "un-applied upsert data"
"""What the service says of a table whose changes wait for too long (PostHog/posthog #63731)."""


def inspect_readers(storage: grpc.Channel, table: bigquery.Table) -> Iterator[Finding]:
    """Check whether the Storage Read API reads a mirror now, and what a query of it reads. No row is read.

    A service that does not answer is no finding: the consumer does not read.
    """
    if MIRROR_OF not in table.labels:
        return
    name = table.table_id
    staleness, size = staleness_of(table), table.num_bytes or 0
    how = "docs/how-to/read-a-mirror.md"
    if not staleness and size >= LARGE:
        yield Finding.warning(
            f"table {name}: cost of queries",
            f"it has {format_size(size)} and no max_staleness: while changes wait, each query reads all of it, and the "
            "Storage Read API refuses it",
            f'set max_staleness in TABLES_FILE (max_staleness = "15m"; {how})',
        )
    code, words = _refusal(storage, table)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        yield Finding.ok(
            "readers of mirrors",
            "not known: this identity may make no read session; roles/bigquery.readSessionUser on project "
            f"{table.project} lets doctor check whether the Storage Read API reads each mirror",
        )
    elif _NOT_FRESH in words:
        fix = f'set max_staleness in TABLES_FILE (max_staleness = "15m"; {how})'
        if staleness:
            fix = f"raise max_staleness in TABLES_FILE, or assign background applies a reservation (BACKGROUND): {how}"
        wait = f"for longer than its max_staleness, {format_duration(staleness)}" if staleness else "to be applied"
        yield Finding.warning(
            f"table {name}: readers",
            f"the Storage Read API refuses it now, for changes wait {wait}; queries read it",
            fix,
        )


def _refusal(storage: grpc.Channel, table: bigquery.Table) -> tuple[grpc.StatusCode | None, str]:
    call = storage.unary_unary(
        _CREATE_READ_SESSION,
        request_serializer=CreateReadSessionRequest.pb().SerializeToString,
        response_deserializer=ReadSession.pb().FromString,
    )
    path = f"projects/{table.project}/datasets/{table.dataset_id}/tables/{table.table_id}"
    session: Any = ReadSession.pb()(table=path, data_format=DataFormat.ARROW)
    session.read_options.selected_fields.extend(field.name for field in table.schema[:1])
    request = CreateReadSessionRequest.pb()(
        parent=f"projects/{table.project}", read_session=session, max_stream_count=1
    )
    routing: Any = routing_header.to_grpc_metadata  # untyped
    try:
        call(request, timeout=_TIMEOUT, metadata=(routing([("read_session.table", path)]),))
    except grpc.RpcError as error:
        return status_of(error)
    return None, ""
