"""The Storage Read API: a table as Arrow, and the refusal of one whose changes wait for longer than max_staleness.

It needs the stand-in's two servers: the official clients read through both.
"""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.api_core import exceptions
from google.cloud.bigquery_storage_v1 import BigQueryReadClient, types
from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport

from tests.integration.stand_in import PROJECT, StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

KEY_VALUE = {"k": "int64", "v": "string", **CHANGE}
NOT_FRESH = "un-applied upsert data that is not fresh enough to meet table's max_staleness"


@pytest.fixture
def stand_in(stand_in_alone: tuple[str, str]) -> StandIn:
    """Return one that no other test's tables are in: background applies are held."""
    return StandIn(stand_in_alone)


@pytest.fixture
def reader(stand_in: StandIn) -> Any:
    transport = BigQueryReadGrpcTransport(channel=grpc.insecure_channel(stand_in.grpc))
    return BigQueryReadClient(transport=transport)  # type: ignore[no-untyped-call]


def session(reader: Any, stand_in: StandIn, table: str, **more: Any) -> types.ReadSession:
    path = f"projects/{PROJECT}/datasets/{stand_in.dataset}/tables/{table}"
    asked = types.ReadSession(table=path, data_format=more.pop("data_format", types.DataFormat.ARROW), **more)
    request = {"parent": f"projects/{PROJECT}", "read_session": asked, "max_stream_count": 4}
    made: types.ReadSession = reader.create_read_session(request, retry=None)
    return made


def rows_of(reader: Any, made: types.ReadSession, offset: int = 0) -> list[dict[str, Any]]:
    schema = pa.ipc.read_schema(pa.py_buffer(made.arrow_schema.serialized_schema))
    return [
        row
        for stream in made.streams
        for page in reader.read_rows(stream.name, offset)
        for row in pa.ipc.read_record_batch(page.arrow_record_batch.serialized_record_batch, schema).to_pylist()
    ]


def test_a_table_is_read_in_the_types_that_are_documented(stand_in: StandIn, reader: Any) -> None:
    stand_in.run(
        "CREATE TABLE t (i INT64, f FLOAT64, b BOOL, s STRING, y BYTES, d DATE, dt DATETIME, tm TIME, ts TIMESTAMP, "
        "n NUMERIC, bn BIGNUMERIC, j JSON, a ARRAY<INT64>)"
    )
    stand_in.run(
        "INSERT INTO t VALUES (1, 1.5, TRUE, 'é', b'\\x00', DATE '2026-11-23', DATETIME '2026-11-23 10:00:00.5', "
        "TIME '10:00:00', TIMESTAMP '2026-11-23 10:00:00.000001+00:00', NUMERIC '1.5', BIGNUMERIC '-0.1', "
        "JSON '{\"a\": 1}', [1, 2])"
    )

    made = session(reader, stand_in, "t")

    (row,) = rows_of(reader, made)
    assert row == {
        "i": 1,
        "f": 1.5,
        "b": True,
        "s": "é",
        "y": b"\x00",
        "d": date(2026, 11, 23),
        "dt": datetime(2026, 11, 23, 10, 0, 0, 500_000, UTC).replace(tzinfo=None),
        "tm": time(10),
        "ts": datetime(2026, 11, 23, 10, 0, 0, 1, UTC),
        "n": Decimal("1.5"),
        "bn": Decimal("-0.1"),
        "j": '{"a":1}',
        "a": [1, 2],
    }
    schema = pa.ipc.read_schema(pa.py_buffer(made.arrow_schema.serialized_schema))
    assert (schema.field("n").type, schema.field("ts").type) == (pa.decimal128(38, 9), pa.timestamp("us", "UTC"))
    assert made.estimated_row_count == 1


def test_some_columns_and_an_offset_are_read(stand_in: StandIn, reader: Any) -> None:
    stand_in.run("CREATE TABLE t (k INT64, v STRING)")
    stand_in.run("INSERT INTO t SELECT n, 'x' FROM UNNEST(GENERATE_ARRAY(1, 25000)) AS n")

    made = session(reader, stand_in, "t", read_options={"selected_fields": ["K"]})

    last = rows_of(reader, made, 24_990)
    assert (len(last), set(last[0])) == (10, {"k"})
    assert len(rows_of(reader, made)) == 25_000
    assert not reader.split_read_stream(request={"name": made.streams[0].name}).primary_stream.name


def test_a_table_with_changes_that_wait_for_too_long_is_refused(stand_in: StandIn, reader: Any) -> None:
    """BigQuery, "Stream table updates with change data capture", limitations."""
    stand_in.run(
        "CREATE TABLE fresh (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)",
    )
    stand_in.run(
        "CREATE TABLE stale (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
        "OPTIONS (max_staleness = INTERVAL 10 MINUTE)"
    )
    stand_in.control("POST", "applies/hold")
    for table in ("fresh", "stale"):
        stand_in.append(table, KEY_VALUE, [change("UPSERT", "1", k=1, v="x")])

    with pytest.raises(exceptions.InvalidArgument, match=NOT_FRESH):
        session(reader, stand_in, "fresh")
    assert stand_in.run("SELECT k, v FROM fresh") == [(1, "x")], "a query merges what waits"
    with pytest.raises(exceptions.InvalidArgument, match=NOT_FRESH):
        session(reader, stand_in, "fresh")
    assert rows_of(reader, session(reader, stand_in, "stale")) == [], "as of the baseline, which is young enough"

    stand_in.control("POST", "clock", seconds=601)
    with pytest.raises(exceptions.InvalidArgument, match=NOT_FRESH):
        session(reader, stand_in, "stale")
    stand_in.control("POST", "applies/run")
    for table in ("fresh", "stale"):
        assert rows_of(reader, session(reader, stand_in, table)) == [{"k": 1, "v": "x"}]


def test_what_is_not_served_or_not_there_names_itself(stand_in: StandIn, reader: Any) -> None:
    stand_in.run("CREATE TABLE t (k INT64, s STRUCT<x INT64>)")
    stand_in.run("CREATE VIEW v AS SELECT 1 AS k")
    for wrong, error, words in (
        ({"data_format": types.DataFormat.AVRO}, exceptions.MethodNotImplemented, "ARROW"),
        ({"read_options": {"row_restriction": "k = 1"}}, exceptions.MethodNotImplemented, "row_restriction"),
        ({}, exceptions.MethodNotImplemented, "STRUCT<x INT64>"),
        ({"read_options": {"selected_fields": ["z"]}}, exceptions.InvalidArgument, "selected fields do not exist"),
    ):
        with pytest.raises(error, match=words):
            session(reader, stand_in, "t", **wrong)
    with pytest.raises(exceptions.InvalidArgument, match="non-table"):
        session(reader, stand_in, "v")
    with pytest.raises(exceptions.NotFound):
        session(reader, stand_in, "missing")
    with pytest.raises(exceptions.NotFound):
        list(reader.read_rows(f"projects/{PROJECT}/locations/us/sessions/s/streams/0", retry=None))


@pytest.mark.filterwarnings("ignore:Retrieving Arrow record batches directly")  # by the client itself
def test_the_rest_client_reads_a_query_through_it(stand_in: StandIn, reader: Any) -> None:
    """As `to_arrow` and `to_dataframe` do with large tables."""
    stand_in.run("CREATE TABLE t (k INT64)")
    stand_in.run("INSERT INTO t SELECT n FROM UNNEST(GENERATE_ARRAY(1, 100)) AS n")

    table = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.t")
    rows = stand_in.client.list_rows(table).to_arrow(bqstorage_client=reader)

    assert sorted(rows.column("k").to_pylist()) == list(range(1, 101))
