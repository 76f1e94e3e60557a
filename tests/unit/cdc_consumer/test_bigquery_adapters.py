"""What the BigQuery adapters make of tables and errors that no stand-in serves."""

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest
import requests
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1.types import StorageError
from google.rpc.status_pb2 import Status
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.errors import append_error, rest_errors
from services.cdc_consumer.adapters.bigquery.mirror_queries import CopiedRows, MirrorQueries
from services.cdc_consumer.adapters.delete_missing_rows.mirror_rows import BigQueryMirrorRows
from services.cdc_consumer.adapters.reconcile.mirror_tables import BigQueryMirrorTables
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.adapters.status.mirrors import read_mirrors
from services.cdc_consumer.core.reconcile.source_table import Mirrored, mirrored
from services.cdc_consumer.core.schema.tables import TableColumn
from services.cdc_consumer.core.stream.counts import Report
from services.cdc_consumer.core.types.types import COLUMN_TYPES, INT64
from services.cdc_consumer.ports import (
    DatasetRefusedError,
    FoundMirror,
    MirrorProgress,
    NotLabelledError,
    PartlyListedError,
    TableTroubleError,
    UnansweredError,
)
from services.cdc_consumer.wiring import sink_task
from shared.bigquery.client import beyond_limits
from shared.contracts.change_batch import encode_batch
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.reasons import Reason
from shared.runtime.metrics import retry_code
from shared.runtime.retries import what_to_check
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_header, table_definition
from tests.unit.cdc_consumer.bigquery_client import NOT_FOUND, FakeBigQuery, resource
from tests.unit.cdc_consumer.decoded import history_of, in_mode
from tests.unit.cdc_consumer.listening import NOWHERE, OPTIONS, heard

PLANES = table_definition(a_header())
COLOUR = table_definition(a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING"))))


def planes(**types: tuple[str, str]) -> dict[str, Any]:
    """Return the table of the planes as it is in BigQuery, with some columns of other types and modes."""
    kinds = {column.name: (column.type.bigquery, "NULLABLE") for column in PLANES.columns} | types
    fields = [{"name": name, "type": kind, "mode": mode} for name, (kind, mode) in kinds.items()]
    return resource("planes", fields, tableConstraints={"primaryKey": {"columns": ["id"]}})


def tables_of(client: Any) -> BigQueryTables:
    return BigQueryTables(client, "p", "d")


def test_the_service_calls_types_by_their_older_names() -> None:
    there = planes(id=("INTEGER", "REQUIRED"), seats=("INTEGER", "NULLABLE"))

    assert tables_of(FakeBigQuery(there)).ensure(PLANES) == PLANES


@pytest.mark.parametrize(
    ("found", "shown"), [(("INTEGER", "REPEATED"), "ARRAY<INT64>"), (("GEOGRAPHY", "NULLABLE"), "GEOGRAPHY")]
)
def test_a_key_that_we_would_not_make_is_a_schema_conflict(found: tuple[str, str], shown: str) -> None:
    with pytest.raises(PoisonRecordError) as raised:
        tables_of(FakeBigQuery(planes(id=found))).ensure(PLANES)

    assert raised.value.reason is Reason.SCHEMA_CONFLICT
    assert f"column id is {shown}, the source has INT64" in raised.value.detail
    assert "drop the table in BigQuery, and take a snapshot five minutes (CLOCK_MARGIN) after" in raised.value.detail


@pytest.mark.parametrize("found", [("INTEGER", "REPEATED"), ("GEOGRAPHY", "NULLABLE"), ("STRING", "NULLABLE")])
def test_a_column_that_we_would_not_make_gets_one_beside_it_and_is_reported_once(found: tuple[str, str]) -> None:
    tables = tables_of(FakeBigQuery(planes(seats=found)))
    with capture_logs() as logs:
        for _ in range(3):
            there = tables.ensure(PLANES)
            tables.forget("planes")

    assert there.columns[-1] == TableColumn("seats_INT64", COLUMN_TYPES["INT64"])
    (event,) = [line for line in logs if line["event"] == "column_of_another_type"]
    assert (event["table"], event["column"], event["written_to"]) == ("planes", "seats", "seats_INT64")
    assert event["fix"].startswith("query seats_INT64, and take a snapshot of ")
    assert "To have the values under seats again, run DROP TABLE `p.d.planes` before" in event["fix"]


def test_a_column_whose_name_bigquery_reserves_is_its_tables_trouble_with_what_ends_it() -> None:
    words = "Column `colour` was recently deleted in the table `planes`. Deleted column name is reserved."
    refused: Any = exceptions.BadRequest  # untyped
    with pytest.raises(TableTroubleError) as raised:
        tables_of(FakeBigQuery(planes(), update_table=refused(words))).ensure(COLOUR)

    assert str(raised.value).startswith(f"table p.d.planes: {words} Give the column another name ")
    assert "TABLES_FILE: renamed_columns" in str(raised.value)


def test_a_column_is_added_with_the_warning_that_older_rows_have_null_in_it() -> None:
    with capture_logs() as logs:
        tables_of(FakeBigQuery(planes())).ensure(COLOUR)
    (event,) = [line for line in logs if line["event"] == "columns_added"]
    assert (event["log_level"], event["columns"]) == ("info", ["colour"]), "most often the source has just added it"
    assert "take a snapshot of the table, unless the source has just added" in event["note"]


@pytest.mark.parametrize("named", ["", "named"])
@pytest.mark.parametrize("kind", [None, exceptions.Forbidden, exceptions.NotFound, exceptions.ServiceUnavailable])
def test_a_refused_table_is_in_trouble_by_itself_unless_its_dataset_is_refused_too(kind: Any, named: str) -> None:
    forbidden: Any = exceptions.Forbidden  # untyped
    errors = {"get_dataset": kind("Access Denied: dataset")} if kind else {}
    client = FakeBigQuery(get_table=forbidden("Access Denied: table"), **errors)
    with pytest.raises(TransientError) as raised:
        tables_of(client).ensure(replace(PLANES, dataset=named))

    if kind is None:
        assert (type(raised.value), str(raised.value)) == (
            TableTroubleError,
            "table p.%s.planes: Access Denied: table" % (named or "d"),
        )
    elif kind is exceptions.ServiceUnavailable:
        assert type(raised.value) is TransientError
    else:
        assert type(raised.value) is (TableTroubleError if named else DatasetRefusedError)
        fix = "roles/bigquery.dataEditor on it" if kind is exceptions.Forbidden else "--project_id=p mk --dataset"
        assert fix in str(raised.value)


class OfDatasets(FakeBigQuery):
    """A client of datasets with a mirror each, that may list some of them only."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__()
        self.errors = errors

    def list_tables(self, dataset: str, **_more: Any) -> Iterator[bigquery.table.TableListItem]:
        name = dataset.removeprefix("p.")
        if name in self.errors:
            raise self.errors[name]
        item: Any = bigquery.table.TableListItem  # untyped
        yield item({**resource(f"in_{name}"), "labels": {"millrace_mirror_of": "x"}, "creationTime": "1"})


def test_one_dataset_that_cannot_be_listed_hides_no_mirror_of_another() -> None:
    refused: Any = exceptions  # untyped
    client: Any = OfDatasets(air=refused.Forbidden("denied"), gone=refused.NotFound("gone"))
    with pytest.raises(PartlyListedError, match=r"tables of p\.air: .*denied") as raised:
        read_mirrors(client, "p", ["d", "air", "gone", "sea"])
    assert [one.table for one in raised.value.mirrors] == ["in_d", "sea.in_sea"]
    assert set(raised.value.not_listed) == {"air"}
    for error, kind in (
        (refused.NotFound("gone"), TableTroubleError),
        (refused.BadGateway("502"), TransientError),
    ):
        client = OfDatasets(d=error)
        with pytest.raises(kind):
            read_mirrors(client, "p", ["d", "sea"])


class Several(FakeBigQuery):
    """A client whose identity may read all tables of a dataset, and write to ``writable`` ones."""

    def __init__(self, *there: str) -> None:
        super().__init__()
        self.there = there
        self.writable: Collection[str] = ()
        self.asked: list[str] = []

    def get_table(self, path: object, **_more: Any) -> bigquery.Table:
        return bigquery.Table.from_api_repr(planes())

    def list_tables(self, dataset: str, **_more: Any) -> Iterator[bigquery.table.TableListItem]:
        assert dataset == "p.d"
        self.asked.append("list")
        for name in self.there:
            label = {"millrace_mirror_of": "x"} if name != "foreign" else {}
            item: Any = bigquery.table.TableListItem  # untyped
            yield item({**resource(name), "labels": label, "type": "VIEW" if name == "view" else "TABLE"})

    def update_table(self, table: bigquery.Table, fields: Sequence[str], **_more: Any) -> bigquery.Table:
        return table

    def test_iam_permissions(self, table: str, permissions: Sequence[str], **_more: Any) -> dict[str, Any]:
        name = table.removeprefix("p.d.")
        self.asked.append(name)
        self.fail_if_planned("test_iam_permissions")
        readable = {"etag": "ACAB", "permissions": ["bigquery.tables.get"]}
        return {"permissions": list(permissions)} if name in self.writable else readable


@pytest.mark.parametrize("process", ["running", "new"])
@pytest.mark.parametrize(
    ("there", "writable", "waits"),
    [
        ("planes", "", True),
        ("planes", "planes", False),
        ("planes airports", "airports", False),
        ("planes airports", "planes", False),
        ("planes airports pilots", "", True),
        ("planes airports pilots", "pilots", False),
        ("planes view foreign airports", "", True),
    ],
)
def test_a_dataset_is_refused_where_this_identity_may_write_to_none_of_its_tables(
    process: str, there: str, writable: str, waits: bool
) -> None:
    client = Several(*there.split())
    client.writable = writable.split()
    tables = tables_of(client)
    if process == "running":
        for name in there.split():
            tables.ensure(table_definition(a_header(name)))
    if waits:
        with pytest.raises(DatasetRefusedError, match=r"p\.d\.planes, and .* the role roles/bigquery\.dataEditor"):
            tables.check_rights(PLANES)
    else:
        tables.check_rights(PLANES)

    if process == "new":
        assert not {"view", "foreign"} & set(client.asked)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (exceptions.Forbidden, DatasetRefusedError),
        (exceptions.NotFound, DatasetRefusedError),
        (exceptions.ServiceUnavailable, TransientError),
    ],
)
def test_who_may_not_even_ask_for_its_rights_has_none_and_without_an_answer_none_are_guessed(
    kind: Any, raised: type[Exception]
) -> None:
    client = Several("planes", "airports")
    client.errors["test_iam_permissions"] = kind("away")
    with pytest.raises(raised) as found:
        tables_of(client).check_rights(PLANES)

    assert type(found.value) is raised


def test_of_rights_is_asked_for_four_tables_at_most_and_twice_a_minute() -> None:
    seconds = [100.0]
    client: Any = Several(*(f"t{number}" for number in range(50)))
    tables = BigQueryTables(client, "p", "d", seconds=lambda: seconds[0])
    for name in client.there:
        with pytest.raises(DatasetRefusedError):
            tables.check_rights(table_definition(a_header(name)))
    assert client.asked == ["list", "t0", "t1", "t2", "t3"]

    client.writable = client.there
    seconds[0] += 30
    tables.check_rights(PLANES)
    assert len(client.asked) == 8, "the list, the refused table, and the first one on which the right is held"


def test_tables_of_a_dataset_that_the_tables_file_names_never_stop_the_others() -> None:
    client = Several("planes")
    tables_of(client).check_rights(replace(PLANES, dataset="named"))

    assert client.asked == []


def test_another_key_is_a_schema_conflict_and_reports_what_to_do() -> None:
    with pytest.raises(PoisonRecordError) as raised:
        tables_of(FakeBigQuery(planes())).ensure(table_definition(a_header(key=("name",))))

    assert raised.value.reason is Reason.SCHEMA_CONFLICT
    assert "drop it in BigQuery" in raised.value.detail


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (exceptions.ServiceUnavailable, TransientError),
        (exceptions.InternalServerError, TransientError),
        (exceptions.TooManyRequests, TransientError),
        (requests.ConnectionError, TransientError),
        (requests.ReadTimeout, TransientError),
        (requests.exceptions.ChunkedEncodingError, TransientError),
        (requests.exceptions.ContentDecodingError, TransientError),
        (ConnectionResetError, TransientError),
        (TimeoutError, TransientError),
        (OSError, TransientError),
        (auth_exceptions.TransportError, TransientError),
        (auth_exceptions.OSError, MisconfiguredError),
        (requests.exceptions.InvalidURL, MisconfiguredError),
        (exceptions.Forbidden, TableTroubleError),
        (exceptions.BadRequest, TableTroubleError),
        (exceptions.Unauthorized, MisconfiguredError),
        (auth_exceptions.RefreshError, MisconfiguredError),
    ],
)
def test_each_error_of_the_client_reports_what_to_do_next(
    kind: Callable[[str], Exception], expected: type[Exception]
) -> None:
    with pytest.raises(expected) as translated, rest_errors("table planes"):
        raise kind("x")

    assert type(translated.value) is expected
    assert getattr(translated.value, "denied", False) is (kind is exceptions.Forbidden)
    assert str(translated.value).startswith(
        ("table planes: x", "table planes: no access token now: x", "the Google credentials cannot be used: x")
    )


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


def test_an_unknown_error_is_left_as_it_is() -> None:
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
        assert getattr(error, "denied", False) is (code is grpc.StatusCode.PERMISSION_DENIED)
        transient = isinstance(error, TransientError) and not isinstance(error, TableTroubleError)
        assert ("words" in str(error)) is not transient  # what is logged at each retry quotes nothing
        known = isinstance(error, TransientError) and code is not grpc.StatusCode.OK
        assert retry_code(error) == (code.name if known else "OTHER")


def test_a_storage_error_reports_more_than_the_status() -> None:
    status = Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="words")
    status.details.add().Pack(StorageError.pb()(code="SCHEMA_MISMATCH_EXTRA_FIELDS"))
    error = append_error("planes", status)

    assert type(error) is TableTroubleError
    assert "SCHEMA_MISMATCH_EXTRA_FIELDS" in str(error)


def test_a_storage_error_that_the_library_does_not_know_is_named_by_its_number() -> None:
    status = Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], message="words")
    status.details.add().Pack(StorageError.pb()(code=1_014))
    error = append_error("planes", status)

    assert type(error) is TableTroubleError
    assert str(error) == "table planes: append refused, FAILED_PRECONDITION 1014: words"


def test_a_denial_is_shown_in_bigquerys_words_with_the_fix_and_nothing_else_that_may_quote_a_row() -> None:
    denied = Status(code=grpc.StatusCode.PERMISSION_DENIED.value[0], message="Permission TABLES_UPDATE_DATA denied.")
    of_key = Status(code=denied.code, message="key 'secret'")
    of_key.details.add().Pack(StorageError.pb()(code="KMS_PERMISSION_DENIED"))
    gone = Status(code=grpc.StatusCode.NOT_FOUND.value[0], message="value 'secret'")
    forbidden: Any = exceptions.Forbidden  # untyped
    with pytest.raises(TableTroubleError) as rest, rest_errors("table planes"):
        raise forbidden("Access Denied: Table p:d.planes", errors=[{"reason": "accessDenied"}])
    fix = "; grant this identity roles/bigquery.dataEditor on the dataset"

    assert [shown_of(append_error("planes", one)) for one in (denied, of_key, gone)] == [
        f"table planes: append refused, PERMISSION_DENIED: Permission TABLES_UPDATE_DATA denied{fix}",
        "PERMISSION_DENIED KMS_PERMISSION_DENIED",
        "NOT_FOUND",
    ]
    assert shown_of(rest.value) == f"table planes: Access Denied: Table p:d.planes{fix}"


def shown_of(error: Exception | None) -> str:
    assert isinstance(error, TableTroubleError)
    return error.shown


@dataclass
class Job:
    """A query job of `QueryJobs`; each result is waited for with an error, until none is left."""

    job_id: str
    errors: list[Exception]
    total_bytes_billed: int = 10_485_760

    @property
    def error_result(self) -> Any:
        return (
            {"reason": "backendError"} if self.errors and isinstance(self.errors[0], exceptions.ServerError) else None
        )

    def result(self, **_more: Any) -> Any:
        if self.errors:
            raise self.errors[0] if self.error_result else self.errors.pop(0)
        return SimpleNamespace(pages=[])


class QueryJobs:
    """A client that runs query jobs, whose calls fail as a test says, and lists one table of two pages."""

    def __init__(self, *, inserts: Sequence[Exception] = (), results: Sequence[Exception] = ()) -> None:
        self.jobs: dict[str, Job] = {}
        self.statements: list[str] = []
        self.dropped: list[str] = []
        self.breaks: list[Exception] = []
        """What ends a listing after its first page."""
        self._inserts = list(inserts)
        self._results = list(results)

    def query(self, statement: str, _config: Any, *, job_id: str, **_more: Any) -> Job:
        if job_id in self.jobs:
            raise exceptions.Conflict(f"Already Exists: Job {job_id}")  # type: ignore[no-untyped-call]
        self.statements.append(statement)
        self.jobs[job_id] = Job(job_id, self._results)
        self._results = []
        if self._inserts:
            raise self._inserts.pop(0)
        return self.jobs[job_id]

    def get_job(self, job_id: str, **_more: Any) -> Job:
        return self.jobs[job_id]

    def list_rows(self, _table: Any, *, page_size: int, retry: None, timeout: float) -> Any:
        return SimpleNamespace(pages=self._pages())

    def _pages(self) -> Iterator[Any]:
        yield SimpleNamespace(raw_page={"rows": [{"f": [{"v": "1"}]}]})
        if self.breaks:
            raise self.breaks.pop(0)
        yield SimpleNamespace(raw_page={"rows": [{"f": [{"v": "2"}]}]})

    def delete_table(self, table: str, **_more: Any) -> None:
        self.dropped.append(table)


def copied(client: Any) -> CopiedRows:
    return MirrorQueries(client).copied("p.d.planes", "SELECT 1", [TableColumn("id", INT64)])


BREAKS = pytest.mark.parametrize(
    "error", [requests.exceptions.ChunkedEncodingError("x"), TimeoutError("x"), ConnectionResetError("x")], ids=repr
)


@BREAKS
def test_a_mirror_whose_reading_breaks_off_is_listed_again_and_not_queried_again(error: Exception) -> None:
    client = QueryJobs()
    client.breaks = [error]
    with copied(client) as rows:
        pages = rows.pages()
        assert len(next(pages)) == 1
        with pytest.raises(TransientError, match=r"table p\.d\.millrace_temporary_\w+: x"):
            next(pages)
        assert [page.column("id").to_pylist() for page in rows.pages()] == [[1], [2]]
        assert client.dropped == []

    (statement,) = client.statements
    (dropped,) = client.dropped
    assert statement.startswith(f"CREATE TABLE `{dropped}` OPTIONS (expiration_timestamp = ")


@BREAKS
def test_a_query_whose_call_fails_is_found_again_and_not_run_again(error: Exception) -> None:
    client = QueryJobs(inserts=[error], results=[TimeoutError("a minute is over"), ConnectionResetError("y")])
    with copied(client) as rows:
        for why in ("x", "y"):
            with pytest.raises(TransientError, match=why):
                next(rows.pages())
        assert len(list(rows.pages())) == 2

    assert len(client.statements) == 1


def test_a_query_that_has_failed_is_run_again_under_another_name() -> None:
    client = QueryJobs(results=[exceptions.InternalServerError("backend")])  # type: ignore[no-untyped-call]
    with copied(client) as rows:
        with pytest.raises(TransientError, match="backend"):
            next(rows.pages())
        assert len(list(rows.pages())) == 2

    assert len(client.statements) == 2


@pytest.mark.parametrize(
    ("dataset", "message"),
    [(True, "there is no table p.d.planes"), (False, "dataset p.d does not exist .BIGQUERY_DATASET")],
)
def test_a_mirror_that_is_not_there_is_distinguished_from_a_dataset_that_is_not(dataset: bool, message: str) -> None:
    client: Any = FakeBigQuery(**({} if dataset else {"get_dataset": NOT_FOUND("d")}))
    with pytest.raises(MisconfiguredError, match=message):
        BigQueryMirrorRows(MirrorQueries(client), "p", "d", Stop()).find("planes")
    with pytest.raises(MisconfiguredError, match=message):
        BigQueryMirrorTables(client, "p", "d").find(Mirrored(a_header(), PLANES, PLANES.columns))


def test_a_task_that_only_makes_tables_gives_a_sign_of_life_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = [planes() | {"tableReference": resource(f"planes_{number}")["tableReference"]} for number in range(3)]
    monkeypatch.setattr(sink_task, "open_client", lambda _project, _host: FakeBigQuery(*tables))
    with heard() as (driver, taken):
        made = sink_task._composed(
            os.getpid(), replace(OPTIONS, dataset="d", pubsub_emulator_host=NOWHERE, driver=driver)
        ).ports.tables
        for _ in range(2):
            for number in range(3):
                made.ensure(replace(PLANES, name=f"planes_{number}"))

    assert [taken.get_nowait() for _ in range(taken.qsize())] == [Report()] * 3


def test_no_name_in_the_query_of_some_rows_can_be_a_columns_of_the_mirror() -> None:
    """A source may have a column of any name but those that begin with the prefix of our own."""
    client: Any = QueryJobs()
    table = mirrored(encode_batch(a_header(), []))
    keys = pa.table({"id": pa.array([1, 2], pa.int64())})
    found, progress = BigQueryMirrorTables(client, "p", "d").recheck(table, FoundMirror("p.d.planes"), keys, "")

    assert (len(found), progress) == (0, MirrorProgress("", ""))
    (asked,) = client.statements
    named = re.findall(r"UNNEST\([^@]*@last\)\) AS (\w+)", asked)
    assert named
    assert all(name.startswith("_millrace_") and f"OFFSET({name})" in asked for name in named)


def test_all_keys_are_one_query_unless_they_do_not_fit_into_a_request() -> None:
    """BigQuery, "Quotas and limits", query jobs: a request of 10 MB at most."""
    table = mirrored(encode_batch(a_header(), []))
    for keys, queries in ((20_000, 1), (1_000_000, 8)):
        client: Any = QueryJobs()
        rows = pa.table({"id": pa.array(range(keys), pa.int64())})
        BigQueryMirrorTables(client, "p", "d").recheck(table, FoundMirror("p.d.planes"), rows, "")
        assert len(client.statements) == queries


class Busy(FakeBigQuery):
    """Is too busy to make a view, and then away for all that is read."""

    is_busy = True
    is_away = False

    def create_table(self, table: bigquery.Table, **more: Any) -> bigquery.Table:
        """Make it, unless it is a view."""
        if table.view_query and self.is_busy:
            raise a_503()
        return super().create_table(table, **more)

    def get_table(self, path: object, **more: Any) -> bigquery.Table:
        """Return it, unless BigQuery is away."""
        if self.is_away:
            raise a_503()
        return super().get_table(path, **more)


def a_503() -> Exception:
    unavailable: Any = exceptions.ServiceUnavailable  # untyped
    error: Exception = unavailable("try again")
    return error


def test_a_view_that_bigquery_was_too_busy_for_is_made_a_minute_later_and_no_row_waits_for_it() -> None:
    history = history_of(in_mode("history"), a_header())
    client: Any = Busy()
    now = [0.0]
    tables = BigQueryTables(client, "p", "d", seconds=lambda: now[0])
    with capture_logs() as logs:
        there = tables.ensure(history)
        for away in (False, True):
            client.is_away = away
            for later in (30, 61):
                now[0] += later
                assert tables.ensure(history) == there
    assert len([line for line in logs if line["event"] == "history_view_not_made"]) == 2
    assert "planes_history" not in client.tables
    client.is_away = client.is_busy = False
    now[0] += 61
    tables.ensure(history)
    assert "planes_history" in client.tables


def test_what_bigquery_answers_is_no_fault_of_the_network() -> None:
    answers = (DatasetRefusedError("refused"), NotLabelledError("no label"), TableTroubleError("no primary key"))
    assert not any("network" in what_to_check(each) for each in answers)
    assert "network" in what_to_check(UnansweredError("silent"))
