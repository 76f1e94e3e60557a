"""What the BigQuery adapters make of tables and errors that no stand-in serves."""

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest
import requests
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1.types import StorageError
from google.rpc.status_pb2 import Status
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery_errors import append_error, beyond_limits, rest_errors
from services.cdc_consumer.adapters.mirror_rows import BigQueryMirrorRows
from services.cdc_consumer.adapters.mirror_tables import BigQueryMirrors
from services.cdc_consumer.adapters.tables import BigQueryTables
from services.cdc_consumer.core.source_table import Mirrored
from services.cdc_consumer.core.tables import TableDefinition, table_definition
from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.reasons import Reason
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_header

PLANES = table_definition(a_header())
COLOUR = table_definition(a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING"))))


class OneTable:
    """A client that knows one table."""

    def __init__(self, **types: tuple[str, str]) -> None:
        fields = [{"name": c.name, "type": c.type.bigquery, "mode": "NULLABLE"} for c in PLANES.columns]
        for field in fields:
            if field["name"] in types:
                field["type"], field["mode"] = types[field["name"]]
        self._resource = {
            "tableReference": {"projectId": "p", "datasetId": "d", "tableId": "planes"},
            "schema": {"fields": fields},
            "tableConstraints": {"primaryKey": {"columns": ["id"]}},
        }

    def get_table(self, _table: Any, **_more: Any) -> bigquery.Table:
        return bigquery.Table.from_api_repr(self._resource)

    def update_table(self, table: bigquery.Table, fields: Sequence[str], **_more: Any) -> bigquery.Table:
        assert set(fields) <= {"labels", "schema"}
        return table


def ensured(**types: tuple[str, str]) -> TableDefinition:
    client: Any = OneTable(**types)
    return BigQueryTables(client, "p", "d").ensure(PLANES)


def test_the_service_calls_types_by_their_older_names() -> None:
    assert ensured(id=("INTEGER", "REQUIRED"), seats=("INTEGER", "NULLABLE")) == PLANES


@pytest.mark.parametrize(
    ("found", "shown"), [(("INTEGER", "REPEATED"), "ARRAY<INT64>"), (("GEOGRAPHY", "NULLABLE"), "GEOGRAPHY")]
)
def test_a_column_that_we_would_not_make_is_a_schema_conflict(found: tuple[str, str], shown: str) -> None:
    with pytest.raises(PoisonRecordError) as raised:
        ensured(seats=found)

    assert raised.value.reason is Reason.SCHEMA_CONFLICT
    assert f"column seats is {shown}" in raised.value.detail
    assert "DROP COLUMN `seats`), do without it (TABLES_FILE: ignored_columns)" in raised.value.detail


def test_who_drops_a_column_is_told_that_the_rows_without_a_letter_take_a_snapshot() -> None:
    with pytest.raises(PoisonRecordError) as raised:
        ensured(seats=("STRING", "NULLABLE"))
    assert raised.value.detail.endswith(
        "; then replay, and take a snapshot: rows without a letter have NULL there until then"
    )

    client: Any = OneTable()
    with capture_logs() as logs:
        BigQueryTables(client, "p", "d").ensure(COLOUR)
    (said,) = [line for line in logs if line["event"] == "columns_added"]
    assert (said["log_level"], said["columns"]) == ("info", ["colour"]), "most often the source has just added it"
    assert "take a snapshot of the table, unless the source has just added" in said["note"]


def test_another_key_is_a_schema_conflict_and_says_what_to_do() -> None:
    client: Any = OneTable()
    with pytest.raises(PoisonRecordError) as raised:
        BigQueryTables(client, "p", "d").ensure(table_definition(a_header(key=("name",))))

    assert raised.value.reason is Reason.SCHEMA_CONFLICT
    assert "drop or rename it in BigQuery" in raised.value.detail


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (exceptions.ServiceUnavailable, TransientError),
        (exceptions.InternalServerError, TransientError),
        (exceptions.TooManyRequests, TransientError),
        (requests.ConnectionError, TransientError),
        (requests.ReadTimeout, TransientError),
        (auth_exceptions.TransportError, TransientError),
        (exceptions.Forbidden, TableTroubleError),
        (exceptions.BadRequest, TableTroubleError),
        (exceptions.Unauthorized, MisconfiguredError),
        (auth_exceptions.RefreshError, MisconfiguredError),
    ],
)
def test_each_error_of_the_client_says_what_to_do_next(
    kind: Callable[[str], Exception], expected: type[Exception]
) -> None:
    with pytest.raises(expected) as translated, rest_errors("table planes"):
        raise kind("x")

    assert type(translated.value) is expected
    assert str(translated.value).startswith("table planes: x")


@pytest.mark.parametrize(
    ("reasons", "passes"),
    [
        (["rateLimitExceeded"], True),
        (["quotaExceeded"], True),
        (["jobRateLimitExceeded"], True),
        (["other", "quotaExceeded"], True),
        (["accessDenied"], False),
        (["billingNotEnabled"], False),
        (["policyViolation"], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("kind", [exceptions.Forbidden, exceptions.BadRequest])
def test_what_is_beyond_a_limit_is_no_want_of_a_right_and_passes(
    kind: Callable[..., exceptions.GoogleAPICallError], reasons: Sequence[str], passes: bool
) -> None:
    error = kind("words", errors=[{"reason": reason, "domain": "global", "message": "words"} for reason in reasons])
    assert beyond_limits(error) is passes
    with pytest.raises(TransientError) as translated, rest_errors("table planes"):
        raise error

    assert type(translated.value) is (TransientError if passes else TableTroubleError)


def test_errors_of_another_form_have_no_reason() -> None:
    forbidden: Any = exceptions.Forbidden  # untyped
    assert not beyond_limits(forbidden("words", errors=["rateLimitExceeded", {"message": "words"}]))


def test_an_error_that_nobody_knows_is_left_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), rest_errors("table planes"):
        raise ZeroDivisionError


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_status_of_an_append_means_something(code: grpc.StatusCode) -> None:
    error = append_error("planes", Status(code=code.value[0], message="words"))

    if code is grpc.StatusCode.INVALID_ARGUMENT:
        assert error is None
    else:
        assert isinstance(error, TransientError | MisconfiguredError)
        assert f"table planes: append refused, {code.name}" in str(error)
        transient = isinstance(error, TransientError) and not isinstance(error, TableTroubleError)
        assert ("words" in str(error)) is not transient  # what is logged at each retry quotes nothing


def test_a_storage_error_tells_more_than_the_status() -> None:
    status = Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="words")
    status.details.add().Pack(StorageError.pb()(code="SCHEMA_MISMATCH_EXTRA_FIELDS"))
    error = append_error("planes", status)

    assert type(error) is TableTroubleError
    assert "SCHEMA_MISMATCH_EXTRA_FIELDS" in str(error)


class Nothing:
    """A client of a project that has a dataset, or none."""

    def __init__(self, *, dataset: bool) -> None:
        self._dataset = dataset

    def get_table(self, path: str, **_more: Any) -> bigquery.Table:
        raise exceptions.NotFound(path)  # type: ignore[no-untyped-call]

    def get_dataset(self, path: str, **_more: Any) -> bigquery.Dataset:
        if not self._dataset:
            raise exceptions.NotFound(path)  # type: ignore[no-untyped-call]
        return bigquery.Dataset(path)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [(True, "there is no table p.d.planes"), (False, "dataset p.d does not exist .BIGQUERY_DATASET")],
)
def test_a_mirror_that_is_not_there_is_told_from_a_dataset_that_is_not(dataset: bool, told: str) -> None:
    client: Any = Nothing(dataset=dataset)
    with pytest.raises(MisconfiguredError, match=told):
        BigQueryMirrorRows(client, "p", "d", Stop()).find("planes")
    with pytest.raises(MisconfiguredError, match=told):
        BigQueryMirrors(client, "p", "d").find(Mirrored(a_header(), PLANES, PLANES.columns))
