"""What a `doctor` inspects in BigQuery: a dataset, the rights in it, the write API, and the tables that are there.

Rights cannot be asked of a dataset, only of a table: so an empty one is made for it, which expires by itself, and
dropped again. Nothing else is changed. What does not answer, or refuses, is a finding like any other.
"""

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import grpc
import requests
from google.api_core import exceptions
from google.api_core.gapic_v1 import routing_header
from google.auth import exceptions as auth_exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1.types import GetWriteStreamRequest, WriteStream

from services.cdc_consumer.adapters.bigquery.mirror_labels import NEEDS_RESYNC
from services.cdc_consumer.adapters.bigquery.mirror_queries import TEMPORARY
from services.cdc_consumer.adapters.bigquery.staleness import read_watermarks
from services.cdc_consumer.adapters.doctor.mirror_readers import inspect_readers
from services.cdc_consumer.adapters.schema.dataset_defaults import default_collation
from services.cdc_consumer.adapters.schema.tables import primary_key_of
from services.cdc_consumer.core.schema.tables import COMMIT_TIMESTAMP_COLUMN
from services.cdc_consumer.ports import GRANT, LEFT_OUT, MASKS_CHANGED, RECREATED, ROWS_TOO_OLD
from shared.bigquery.client import beyond_limits
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF, SEQUENCE_COLUMN
from shared.runtime.findings import Finding, Level

_TIMEOUT: Final = 10.0  # seconds
_NO_RETRY: Final[Any] = None
_PROBE: Final = "millrace_doctor_"
_RIGHTS: Final = ("bigquery.tables.get", "bigquery.tables.update", "bigquery.tables.updateData")
_OURS: Final = {SEQUENCE_COLUMN: "STRING", COMMIT_TIMESTAMP_COLUMN: "TIMESTAMP"}
_HISTORY_COLUMN: Final = "_metadata_spanner_mod_type"
_GET_WRITE_STREAM: Final = "/google.cloud.bigquery.storage.v1.BigQueryWrite/GetWriteStream"

_ANSWERS: Final = (
    exceptions.GoogleAPICallError,
    exceptions.RetryError,
    auth_exceptions.GoogleAuthError,
    requests.RequestException,
)
"""Whatever the client raises where the service says no, or nothing."""


def inspect_dataset(client: bigquery.Client, storage: grpc.Channel, project: str, dataset: str) -> Iterator[Finding]:
    """Inspect everything there is to see of one dataset."""
    path = f"{project}.{dataset}"
    what = f"dataset {dataset}"
    try:
        found = client.get_dataset(path, retry=_NO_RETRY, timeout=_TIMEOUT)
    except exceptions.NotFound:
        fix = (
            f"correct BIGQUERY_DATASET or the tables file, or bq --location=LOCATION --project_id={project} mk "
            f"--dataset {dataset}; LOCATION is the region or multi-region of its source, and can never be changed"
        )
        yield Finding.error(what, f"{path} does not exist", fix)
        yield from _write_api(storage, project, dataset, _PROBE)
        return
    except _ANSWERS as error:
        yield _unanswered(what, error)
        yield from _write_api(storage, project, dataset, _PROBE)
        return
    yield Finding.ok(what, f"{path} is there, in {found.location}")
    yield _expiry(what, found, project, dataset)
    if collation := default_collation(found):
        yield Finding.warning(
            f"{what}: collation",
            f"tables made in it compare text by {collation}; the consumer makes its own without, others do not",
            f"ALTER SCHEMA `{path}` SET DEFAULT COLLATE ''",
        )
    with _probe(client, path) as (probe, findings):
        yield from findings
        if probe:
            yield _rights(client, f"{path}.{probe}", what)
        yield from _write_api(storage, project, dataset, probe or _PROBE)
    yield from _tables(client, storage, path)


def inspect_datasets_of_schemas(
    client: bigquery.Client, storage: grpc.Channel, project: str, templates: Collection[str], known: Collection[str]
) -> Iterator[Finding]:
    """Inspect those datasets, besides the known ones, that a template can name and that hold a table of ours."""
    if not templates:
        return
    check = "datasets by schema"
    try:
        ours = datasets_of_schemas(client, project, templates, known)
    except _ANSWERS as error:
        yield _unanswered(check, error)
        return
    yield Finding.ok(check, f"{', '.join(sorted(templates))}: {', '.join(ours) or 'none has a table yet'}")
    for dataset in ours:
        yield from inspect_dataset(client, storage, project, dataset)


def datasets_of_schemas(
    client: bigquery.Client, project: str, templates: Collection[str], known: Collection[str]
) -> Sequence[str]:
    """Return those datasets, besides the known ones, that a template can name and that hold a table of ours.

    The client's errors.
    """
    named = "|".join(re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(one)) for one in sorted(templates))
    candidates = [
        one.dataset_id
        for one in client.list_datasets(project, retry=_NO_RETRY, timeout=_TIMEOUT)
        if one.dataset_id not in known and re.fullmatch(named, one.dataset_id)
    ]
    return [one for one in candidates if _has_a_table_of_ours(client, f"{project}.{one}")]


def _has_a_table_of_ours(client: bigquery.Client, path: str) -> bool:
    listed = client.list_tables(path, retry=_NO_RETRY, timeout=_TIMEOUT)
    return any(not {MIRROR_OF, HISTORY_OF}.isdisjoint(one.labels) for one in listed)


def _expiry(what: str, found: bigquery.Dataset, project: str, dataset: str) -> Finding:
    check = f"{what}: expiry"
    if found.default_partition_expiration_ms is not None:
        days = found.default_partition_expiration_ms / 86_400_000
        return Finding.error(
            check,
            f"partitions of tables made in it are deleted after {days:g} days: a history loses what is older",
            f"bq --project_id={project} update --default_partition_expiration 0 {dataset}; and of the histories that "
            "are there: bq update --time_partitioning_expiration 0 TABLE",
        )
    if found.default_table_expiration_ms is None:
        return Finding.ok(check, "tables made in it stay")
    days = found.default_table_expiration_ms / 86_400_000
    return Finding.error(
        check,
        f"tables made in it are deleted after {days:g} days, and with them all that was applied",
        f"bq --project_id={project} update --default_table_expiration 0 {dataset}",
    )


@contextmanager
def _probe(client: bigquery.Client, path: str) -> Iterator[tuple[str, list[Finding]]]:
    """Make an empty table for the block; yield its name ("" if that is refused) and what is to be said of it."""
    name, check = _PROBE + uuid.uuid4().hex[:12], f"dataset {path.partition('.')[2]}: making tables"
    table = bigquery.Table(f"{path}.{name}", schema=[bigquery.SchemaField("k", "INT64")])
    table.expires = datetime.now(UTC) + timedelta(hours=1)
    findings: list[Finding] = []
    try:
        client.create_table(table, retry=_NO_RETRY, timeout=_TIMEOUT)
    except _ANSWERS as error:
        yield "", [_unanswered(check, error, "tables cannot be made in it: ")]
        return
    findings.append(Finding.ok(check, "a table could be made"))
    try:
        yield name, findings
    finally:
        with suppress(*_ANSWERS):  # should it not be dropped, it expires within the hour
            client.delete_table(table, retry=_NO_RETRY, timeout=_TIMEOUT, not_found_ok=True)


def _rights(client: bigquery.Client, table: str, what: str) -> Finding:
    check = f"{what}: rights"
    try:
        answer = client.test_iam_permissions(table, _RIGHTS, retry=_NO_RETRY, timeout=_TIMEOUT)
    except _ANSWERS as error:
        return _unanswered(check, error)
    missing = [one for one in _RIGHTS if one not in answer.get("permissions", ())]
    if missing:
        return Finding.error(check, f"this identity lacks {', '.join(missing)}", GRANT)
    return Finding.ok(check, ", ".join(_RIGHTS))


def _write_api(storage: grpc.Channel, project: str, dataset: str, table: str) -> Iterator[Finding]:
    """Ask the write API for a table's default stream: that it answers at all is what counts."""
    check = "write API"
    name = f"projects/{project}/datasets/{dataset}/tables/{table}/streams/_default"
    call = storage.unary_unary(
        _GET_WRITE_STREAM,
        request_serializer=GetWriteStreamRequest.pb().SerializeToString,
        response_deserializer=WriteStream.pb().FromString,
    )
    routing: Any = routing_header.to_grpc_metadata  # untyped
    try:
        call(GetWriteStreamRequest.pb()(name=name), timeout=_TIMEOUT, metadata=(routing([("name", name)]),))
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
    else:
        code = grpc.StatusCode.OK
    match code:
        case grpc.StatusCode.OK | grpc.StatusCode.NOT_FOUND:  # of a table just made it need not know yet
            yield Finding.ok(check, "the Storage Write API answers")
        case grpc.StatusCode.PERMISSION_DENIED:
            yield Finding.error(check, "this identity may not write", GRANT)
        case grpc.StatusCode.UNAUTHENTICATED:
            yield Finding.error(check, "these credentials are not taken", "gcloud auth application-default login")
        case _:
            yield Finding.error(
                check,
                f"the Storage Write API does not answer: {code.name}",
                "let this machine reach bigquerystorage.googleapis.com:443; BIGQUERY_STORAGE_EMULATOR_HOST is for a "
                "stand-in only",
            )


def _tables(client: bigquery.Client, storage: grpc.Channel, path: str) -> Iterator[Finding]:
    try:
        listed = [
            one.table_id
            for one in client.list_tables(path, retry=_NO_RETRY, timeout=_TIMEOUT)
            if one.table_type == "TABLE" and not one.table_id.startswith((_PROBE, TEMPORARY))
        ]
    except _ANSWERS as error:
        yield _unanswered(f"tables of {path}", error)
        return
    if not listed:
        yield Finding.ok(f"tables of {path}", "none yet: they are made as their changes arrive")
    applied = _applied(client, path)
    of_readers: list[Finding] = []  # a right that is missing is missing for each table
    for name in listed:
        try:
            table = client.get_table(f"{path}.{name}", retry=_NO_RETRY, timeout=_TIMEOUT)
        except exceptions.NotFound:
            continue  # dropped in this moment
        except _ANSWERS as error:
            yield _unanswered(f"table {name}", error)
            continue
        wrong = [*_table(table), *_denied(client, table)]
        yield from wrong
        if not wrong:
            yield Finding.ok(f"table {name}", _described(table, applied.get(name)))
        for finding in inspect_readers(storage, table):
            if finding not in of_readers:
                of_readers.append(finding)
                yield finding


def _denied(client: bigquery.Client, table: bigquery.Table) -> Iterator[Finding]:
    """Return that one of our tables may not be written, though its dataset's others may."""
    if not {MIRROR_OF, HISTORY_OF}.isdisjoint(table.labels):
        found = _rights(client, str(table.reference), f"table {table.table_id}")
        if found.level is not Level.OK:
            yield found


def _applied(client: bigquery.Client, path: str) -> Mapping[str, datetime]:
    """Return up to when BigQuery has merged the changes of each table by itself; nothing where that cannot be asked."""
    try:
        return read_watermarks(client, path, _TIMEOUT)
    except (*_ANSWERS, futures.TimeoutError):
        return {}


def _table(table: bigquery.Table) -> Iterator[Finding]:
    """Return what is not right with one table."""
    name, shown = table.table_id, f"{table.project}:{table.dataset_id}.{table.table_id}"
    alter = f"ALTER TABLE `{table.project}.{table.dataset_id}.{name}`"
    ours = MIRROR_OF in table.labels
    columns = {field.name: field for field in table.schema}
    if not _has_no_key(table) and not primary_key_of(table):
        yield Finding(
            Level.ERROR if ours else Level.WARNING,
            f"table {name}: primary key",
            "it has no primary key, by which BigQuery applies changes"
            + ("" if ours else "; a source table of this name would be deferred"),
            f"{alter} ADD PRIMARY KEY (`...`) NOT ENFORCED",
        )
    for column, kind in _OURS.items():
        if column in columns and columns[column].field_type != kind:
            yield Finding.error(
                f"table {name}: column conflict",
                f"{column} is {columns[column].field_type}, Millrace writes {kind}: every change becomes a dead letter",
                "give the source table another name there (TABLES_FILE: name); or, where nothing else needs it, drop "
                f"it: DROP TABLE `{table.project}.{table.dataset_id}.{name}`, and take a snapshot 5 minutes after it "
                "was made again",
            )
    key = set(primary_key_of(table))
    for field in table.schema if ours else ():
        if field.mode == "REQUIRED" and field.name not in key:
            yield Finding.error(
                f"table {name}: column conflict",
                f"{field.name} is REQUIRED: a change that has no value for it is refused",
                f"{alter} ALTER COLUMN `{field.name}` DROP NOT NULL",
            )
    if table.expires is not None and ours:
        yield Finding.error(
            f"table {name}: expiry", f"it is deleted at {table.expires}", f"bq update --expiration 0 {shown}"
        )
    if table.labels.get(NEEDS_RESYNC):
        whys = {
            RECREATED: "it was dropped and made again while mirrored",
            ROWS_TOO_OLD: "rows of a snapshot came too late to be applied",
            MASKS_CHANGED: "older rows have another mask key, or other masks or names of columns",
            LEFT_OUT: "its changes went to a history alone, or still do (TABLES_FILE: mode)",
        }
        why = whys.get(table.labels[NEEDS_RESYNC], "")
        yield Finding.warning(
            f"table {name}: pending resync",
            f"{table.labels[NEEDS_RESYNC]}: {why or 'rows are missing in it'}",
            "let its source's reader take a snapshot of it, and delete missing rows after that "
            f"(docs/how-to/resync.md); or, where it is whole in another way: bq update --clear_label {NEEDS_RESYNC} "
            f"{shown}",
        )


def _described(table: bigquery.Table, applied: datetime | None) -> str:
    staleness = table.max_staleness
    fresh = f"as of up to {staleness} ago (max_staleness)" if staleness else "fresh at every query"
    if applied is not None:
        fresh += f", merged by BigQuery up to {applied:%Y-%m-%d %H:%M:%S} UTC"
    if _has_no_key(table):
        return "a history" if _HISTORY_COLUMN in {field.name for field in table.schema} else "a change log"
    mirror = "a mirror" if MIRROR_OF in table.labels else "not a mirror yet"
    return f"{mirror}, primary key ({', '.join(primary_key_of(table))}), {fresh}"


def _has_no_key(table: bigquery.Table) -> bool:
    """Tell whether a table is appended to: a history, one of Google's template among them, or a change log."""
    return HISTORY_OF in table.labels or _HISTORY_COLUMN in {field.name for field in table.schema}


def _unanswered(check: str, error: Exception, what: str = "") -> Finding:
    """Return what it means that a call did not succeed; BigQuery's words of a call about tables quote no rows.

    ``what`` cannot be done where it is for want of a right.
    """
    words = str(getattr(error, "message", "")) or str(error) or type(error).__name__
    if isinstance(error, exceptions.GoogleAPICallError) and beyond_limits(error):
        return Finding.error(check, f"BigQuery takes no more calls for now: {words}", "ask again in a minute")
    if isinstance(error, exceptions.Forbidden):
        return Finding.error(check, what + words, GRANT)
    if isinstance(error, exceptions.Unauthorized | auth_exceptions.GoogleAuthError):
        return Finding.error(check, words, "gcloud auth application-default login")
    return Finding.error(
        check,
        f"BigQuery does not answer: {words}",
        "check the network, and BIGQUERY_EMULATOR_HOST, which is for a stand-in only; then ask again",
    )
