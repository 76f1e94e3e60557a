"""Requests of Google's clients in other languages, sent to the stand-in by Python.

Each request has the form that the client's own source gives it: java-bigquery (google-http-java-client packs each body
with gzip), google-cloud-go/bigquery and @google-cloud/bigquery. `make clients` runs the clients themselves.
"""

import gzip
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import uvicorn
from google.api_core import exceptions
from google.cloud import bigquery
from starlette.applications import Starlette

from emulators.bigquery.bodies import BODY_BYTES
from emulators.bigquery.server import rest_config
from emulators.bigquery.unserved import UNSERVED
from tests.integration.stand_in import PROJECT, StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

JAVA = {
    "Accept-Encoding": "gzip",
    "Authorization": "Bearer any",
    "Content-Encoding": "gzip",
    "Content-Type": "application/json; charset=UTF-8",
    "User-Agent": "gcloud-java/2.72.0 Google-API-Java-Client/2.9.0 Google-HTTP-Java-Client/2.1.0 (gzip)",
    "x-goog-api-client": "gl-java/17.0.19 gccl/2.72.0",
}
GO = {
    "Accept-Encoding": "gzip",
    "Content-Type": "application/json",
    "User-Agent": "google-api-go-client/0.5",
    "x-goog-api-client": "gl-go/1.26.0 gccl/1.86.2 gdcl/0.280.0",
}
NODE = {
    "Content-Type": "application/json",
    "User-Agent": "gcloud-node-bigquery/8.1.1",
    "x-goog-api-client": "gl-node/24",
}


class Rest:
    """One kept-alive connection to the REST side."""

    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(address, timeout=20)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and JSON of the answer; a body that is no bytes is sent as the headers say."""
        headers = headers or {}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            body = gzip.compress(body) if headers.get("Content-Encoding") == "gzip" else body
        self.connection.request(method, path, body, dict(headers))
        answer = self.connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None

    def done(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """Return the JSON of an answer that is no error."""
        status, answer = self.call(method, path, body, headers)
        assert status in (200, 204), answer
        return answer


@pytest.fixture
def rest(bigquery_stand_in: tuple[str, str]) -> Iterator[Rest]:
    rest = Rest(bigquery_stand_in[0])
    yield rest
    rest.connection.close()


API = f"/bigquery/v2/projects/{PROJECT}"


class TestJava:
    """java-bigquery 2.72.0."""

    def test_a_job_is_made_with_gzip_and_its_result_listed_as_a_table(self, stand_in: StandIn, rest: Rest) -> None:
        """`Job.getQueryResults`: getQueryResults without rows, then tabledata.list of the job's destination table."""
        reference = {"datasetId": stand_in.dataset, "projectId": PROJECT, "tableId": "t"}
        schema = {"fields": [{"mode": "REQUIRED", "name": "k", "type": "INTEGER"}, {"name": "v", "type": "STRING"}]}
        table = {"schema": schema, "tableReference": reference, "type": "TABLE"}
        tables = f"{API}/datasets/{stand_in.dataset}/tables?prettyPrint=false"
        assert rest.done("POST", tables, table, JAVA)["tableReference"] == reference
        stand_in.run("INSERT t VALUES (1, 'a'), (2, 'b')")
        configuration = {
            "query": {"query": f"SELECT k, v FROM `{stand_in.dataset}.t` ORDER BY k", "useLegacySql": False}
        }
        job = {
            "configuration": configuration,
            "jobReference": {"jobId": f"job_{stand_in.dataset}", "projectId": PROJECT},
        }

        made = rest.done("POST", f"{API}/jobs?prettyPrint=false", job, JAVA)
        job_id = made["jobReference"]["jobId"]
        found = rest.done("GET", f"{API}/jobs/{job_id}?location=US&prettyPrint=false", headers=JAVA)
        destination = found["configuration"]["query"]["destinationTable"]
        options = "formatOptions.useInt64Timestamp=true&prettyPrint=false"
        results = rest.done("GET", f"{API}/queries/{job_id}?location=US&maxResults=0&{options}", headers=JAVA)
        anonymous = f"{API}/datasets/{destination['datasetId']}/tables/{destination['tableId']}"
        first = rest.done("GET", f"{anonymous}/data?maxResults=1&{options}", headers=JAVA)
        second = rest.done(
            "GET", f"{anonymous}/data?maxResults=1&pageToken={first['pageToken']}&{options}", headers=JAVA
        )
        one_column = rest.done("GET", f"{anonymous}/data?selectedFields=v", headers=JAVA)

        assert (results["jobComplete"], results["totalRows"], "rows" in results) == (True, "2", False)
        assert first["rows"] + second["rows"] == [{"f": [{"v": "1"}, {"v": "a"}]}, {"f": [{"v": "2"}, {"v": "b"}]}]
        assert "pageToken" not in second
        assert [row["f"] for row in one_column["rows"]] == [[{"v": "a"}], [{"v": "b"}]]
        assert rest.done("GET", anonymous)["schema"] == results["schema"]
        assert rest.done("POST", f"{API}/jobs/{job_id}/cancel")["job"]["status"] == {"state": "DONE"}

    def test_a_patch_comes_as_a_post_with_another_method_in_its_header(self, stand_in: StandIn, rest: Rest) -> None:
        """google-http-java-client, `HttpRequest`: java.net's connections know no PATCH."""
        path = f"{API}/datasets/{stand_in.dataset}?prettyPrint=false"
        reference = {"datasetId": stand_in.dataset, "projectId": PROJECT}
        change = {"datasetReference": reference, "description": "by Java"}
        changed = rest.done("POST", path, change, {**JAVA, "X-HTTP-Method-Override": "PATCH"})

        assert changed["description"] == rest.done("GET", path)["description"] == "by Java"
        assert rest.call("POST", path, change, JAVA)[0] == 404

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b'{"datasetReference": {"datasetId": "plain"}}', "not gzip"),
            (gzip.compress(b'{"datasetReference": {"datasetId": "short"}}')[:-9], "in the middle"),
            (gzip.compress(b" " * (BODY_BYTES + 1)), "too large"),
            (gzip.compress(b"[" * 50_000), "not JSON"),
            (gzip.compress(b"[1]"), "not a JSON object"),
        ],
        ids=["not packed", "cut off", "a bomb", "nested", "an array"],
    )
    def test_a_broken_body_is_refused_by_name(self, rest: Rest, body: bytes, expected: str) -> None:
        status, answer = rest.call("POST", f"{API}/datasets", body, JAVA)

        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert expected in answer["error"]["message"]

    def test_a_body_may_be_packed_in_members_and_another_packing_is_named(self, stand_in: StandIn, rest: Rest) -> None:
        name = f"{stand_in.dataset}_members"
        halves = b'{"datasetReference": ', f'{{"datasetId": "{name}"}}}}'.encode()
        made = rest.done("POST", f"{API}/datasets", b"".join(map(gzip.compress, halves)), JAVA)
        status, answer = rest.call("POST", f"{API}/datasets", b"x", {"Content-Encoding": "br"})

        assert made["datasetReference"]["datasetId"] == name
        assert (status, "'br'" in answer["error"]["message"]) == (501, True)


class TestGo:
    """google-cloud-go/bigquery 1.86.2."""

    def test_a_dataset_is_updated_where_it_is_as_it_was_read(self, stand_in: StandIn, rest: Rest) -> None:
        """`Dataset.Update`: PATCH with If-Match."""
        path = f"{API}/datasets/{stand_in.dataset}?alt=json&prettyPrint=false"
        read = rest.done("GET", path, headers=GO)
        change = {"description": "ours", "labels": {"team": "a"}}
        changed = rest.done("PATCH", path, change, {**GO, "If-Match": read["etag"]})
        status, refused = rest.call("PATCH", path, {"description": "theirs"}, {**GO, "If-Match": read["etag"]})

        assert (changed["description"], changed["labels"]) == ("ours", {"team": "a"})
        assert changed["etag"] != read["etag"]
        assert (status, refused["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
        assert rest.done("GET", path)["description"] == "ours"
        rest.done("PATCH", path, {"labels": {"team": None, "tier": "b"}}, GO)
        assert rest.done("GET", path)["labels"] == {"tier": "b"}
        replaced = rest.done("PUT", path, {"friendlyName": "name"}, GO)
        assert ("description" in replaced, replaced["friendlyName"]) == (False, "name")
        assert rest.call("PATCH", path, {"location": "EU"}, GO)[0] == 400

    def test_a_query_is_asked_at_once_with_its_parameters(self, rest: Rest) -> None:
        """`Query.Read`, which calls jobs.query."""
        parameter = {"name": "n", "parameterType": {"type": "INT64"}, "parameterValue": {"value": "7"}}
        request = {
            "formatOptions": {"useInt64Timestamp": True},
            "parameterMode": "NAMED",
            "query": "SELECT @n + 1 AS n, TIMESTAMP_MICROS(5) AS t",
            "queryParameters": [parameter],
            "requestId": "kX2r",
            "useLegacySql": False,
        }
        answer = rest.done("POST", f"{API}/queries?alt=json&prettyPrint=false", request, GO)

        assert (answer["jobComplete"], answer["rows"]) == (True, [{"f": [{"v": "8"}, {"v": "5"}]}])

    @pytest.mark.parametrize(("http_method", "path", "name"), UNSERVED, ids=[f"{m} {n}" for m, _, n in UNSERVED])
    def test_a_method_that_is_not_served_names_itself(self, rest: Rest, http_method: str, path: str, name: str) -> None:
        for part in ("project", "dataset", "table", "job", "model", "routine", "policy"):
            path = path.replace(f"{{{part}}}", "x")
        status, answer = rest.call(http_method, path, b"--no JSON--" if "upload" in path else b"{}")

        assert status == 501
        assert answer["error"]["message"] == f"This stand-in does not serve {name}"
        assert answer["error"]["errors"][0]["reason"] == "notImplemented"

    @pytest.mark.parametrize(
        ("configuration", "expected"),
        [
            ({"load": {"sourceUris": ["gs://b/o"]}}, "a load job"),
            ({"copy": {}}, "a copy job"),
            ({"extract": {}}, "an extract job"),
            ({"query": {"query": "SELECT 1"}}, "legacy SQL"),
            ({"query": {"query": "#legacySQL\nSELECT 1", "useLegacySql": False}}, "legacy SQL"),
            (
                {"query": {"query": "SELECT 1", "useLegacySql": False, "destinationTable": {"tableId": "t"}}},
                "destinationT",
            ),
            ({"query": {"query": "CREATE TABLE d.t (a INT64)", "useLegacySql": False}, "dryRun": True}, "a dry run"),
        ],
        ids=["load", "copy", "extract", "no dialect", "legacy", "destination", "dry run of DDL"],
    )
    def test_a_job_that_is_not_served_is_named(self, rest: Rest, configuration: Any, expected: str) -> None:
        status, answer = rest.call("POST", f"{API}/jobs", {"configuration": configuration}, GO)

        assert status == 501
        assert expected in answer["error"]["message"]

    def test_a_dry_run_reports_the_columns_and_makes_no_job(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING)")
        stand_in.run("INSERT INTO t (k, v) VALUES (1, 'abc')")
        config = bigquery.QueryJobConfig(dry_run=True, default_dataset=f"{PROJECT}.{stand_in.dataset}")
        before = [job.job_id for job in stand_in.client.list_jobs()]

        dry = stand_in.client.query("SELECT v, COUNT(*) AS c FROM t GROUP BY v", job_config=config)
        with pytest.raises(exceptions.NotFound):
            stand_in.client.query("SELECT * FROM missing", job_config=config)

        assert [(field.name, field.field_type) for field in dry.schema or ()] == [("v", "STRING"), ("c", "INTEGER")]
        assert (dry.total_bytes_processed, dry.statement_type) == (5, "SELECT")
        assert [job.job_id for job in stand_in.client.list_jobs()] == before


class TestNode:
    """@google-cloud/bigquery 8.1.1."""

    def test_a_query_and_the_pages_of_its_result(self, rest: Rest) -> None:
        request = {
            "query": "SELECT n FROM UNNEST([1, 2, 3]) AS n ORDER BY n",
            "useLegacySql": False,
            "requestId": "0c5a",
            "jobCreationMode": "JOB_CREATION_REQUIRED",
            "formatOptions": {"useInt64Timestamp": True},
            "maxResults": 2,
        }
        answer = rest.done("POST", f"{API}/queries", request, NODE)
        path = f"{API}/queries/{answer['jobReference']['jobId']}?pageToken={answer['pageToken']}&location=US"

        rows = answer["rows"] + rest.done("GET", path, headers=NODE)["rows"]
        assert [row["f"][0]["v"] for row in rows] == ["1", "2", "3"]


class TestAppends:
    """AppendRows as the clients send it, by their sources: what is beside the rows, and in which requests."""

    @pytest.mark.parametrize(
        ("routing", "trace", "all_in_each"),
        [
            ("", "golang-managedwriter:1.86.2", False),
            ("", "java-jsonwriter java-streamwriter:3.34.0", False),
            (f"write_location=projects/{PROJECT}/locations/us", "java-streamwriter:3.34.0", False),
            (None, "nodejs-writer:5.1.2", True),
        ],
        ids=["Go managedwriter", "Java over a channel of the caller's", "Java pool", "Node JSONWriter"],
    )
    def test_changes_are_taken(self, stand_in: StandIn, routing: str | None, trace: str, all_in_each: bool) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        with stand_in.writing("t", {"k": "int64", "v": "string", **CHANGE}, routing=routing) as writing:
            first = writing.request([change("UPSERT", "1", k=1, v="a")])
            second = writing.request([change("UPSERT", "1", k=2, v="b"), change("DELETE", "2", k=1)])
            first.trace_id = trace
            first.default_missing_value_interpretation = type(first).NULL_VALUE
            if all_in_each:
                second.write_stream = first.write_stream
                second.proto_rows.writer_schema.CopyFrom(first.proto_rows.writer_schema)
                second.trace_id = trace
            answers = [writing.send(first), writing.send(second)]

        assert [answer.HasField("error") for answer in answers] == [False, False]
        assert stand_in.run("SELECT k, v FROM t") == [(2, "b")]


class TestErrors:
    @pytest.mark.parametrize(
        ("statement", "expected"),
        [
            ("SELECT * FROM [ds.t]", 'Syntax error at or near "[" at [1:15]'),
            ("SELECT 1 FROM t WHERE", 'Syntax error at or near "WHERE" at [1:17]'),
            ("SELECT 'a", "Syntax error"),
            ("SELECT NO_SUCH_THING(1)", "Function not found: NO_SUCH_THING"),
            ("SELECT nothing", "Unrecognized name: nothing"),
            ("SELECT 'a' + 1", 'for the function call "+(STRING_LITERAL, INTEGER_LITERAL)"'),
        ],
    )
    def test_a_message_has_no_parsers_words_in_it(self, stand_in: StandIn, statement: str, expected: str) -> None:
        with pytest.raises(exceptions.BadRequest) as refused:
            stand_in.run(statement)

        message = refused.value.errors[0]["message"]
        assert expected in message
        for word in ("\x1b", "<Token", "sqlglot", "class '", "Binder", "Parser Error", "Catalog Error"):
            assert word not in message


def test_an_idle_connection_stays_open_as_long_as_the_services() -> None:
    """Cloud Load Balancing, "Client HTTP keepalive timeout": 610 seconds; uvicorn's own is 5."""
    config: uvicorn.Config = rest_config(Starlette())

    assert config.timeout_keep_alive >= 610
