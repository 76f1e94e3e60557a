"""Streams that an application makes, through the official client of the write API; and that client's own writer.

Sources: BigQuery, "Introduction to the Storage Write API" and "Storage Write API best practices".
"""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient, types, writer
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

from tests.integration.stand_in import PROJECT, StandIn, StorageError, Writing, storage_error
from tests.row_messages import CHANGE, change, row_message, serialized

pytestmark = pytest.mark.integration

FIELDS = {"k": "int64"}


@pytest.fixture
def stand_in(bigquery_stand_in: tuple[str, str]) -> StandIn:
    stand_in = StandIn(bigquery_stand_in)
    stand_in.run("CREATE TABLE t (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
    return stand_in


@pytest.fixture
def client(stand_in: StandIn) -> Iterator[BigQueryWriteClient]:
    with grpc.insecure_channel(stand_in.grpc) as channel:
        untyped: Any = BigQueryWriteClient
        yield untyped(transport=BigQueryWriteGrpcTransport(channel=channel))


def parent(stand_in: StandIn) -> str:
    return f"projects/{PROJECT}/datasets/{stand_in.dataset}/tables/t"


def make(client: BigQueryWriteClient, stand_in: StandIn, kind: str) -> str:
    stream = types.WriteStream(type_=kind)
    made = client.create_write_stream(parent=parent(stand_in), write_stream=stream)
    assert made.type_.name == kind
    assert [field.name for field in made.table_schema.fields] == ["k"]
    return str(made.name)


def writing(stand_in: StandIn, stream: str) -> Writing:
    return Writing(stand_in.grpc, stream, row_message(FIELDS))


def append(writing: Writing, keys: Sequence[int], offset: int | None = None) -> Any:
    request = writing.request([{"k": key} for key in keys])
    if offset is not None:
        request.offset.value = offset
    return writing.send(request)


def keys(stand_in: StandIn) -> list[int]:
    return [key for (key,) in stand_in.run("SELECT k FROM t ORDER BY k")]


def refused(answer: Any) -> tuple[str, str]:
    code = next(code.name for code in grpc.StatusCode if code.value[0] == answer.error.code)
    return code, StorageError.StorageErrorCode.Name(storage_error(answer.error.details).code)


class TestChanges:
    @pytest.mark.parametrize("kind", ["COMMITTED", "PENDING", "BUFFERED"])
    def test_the_default_stream_alone_takes_them(
        self, stand_in: StandIn, client: BigQueryWriteClient, kind: str
    ) -> None:
        """ "Stream table updates with change data capture", section "Prerequisites": on the default stream."""
        message = row_message({**FIELDS, **CHANGE})
        with Writing(stand_in.grpc, make(client, stand_in, kind), message) as writing:
            answer = writing.append([change("UPSERT", "1", k=1)])

        assert answer.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "default stream" in answer.error.message
        assert keys(stand_in) == []


class TestCommitted:
    def test_an_offset_is_written_once_and_only_at_the_end(
        self, stand_in: StandIn, client: BigQueryWriteClient
    ) -> None:
        """ "Storage Write API best practices", section "Manage stream offsets to achieve exactly-once semantics"."""
        with writing(stand_in, make(client, stand_in, "COMMITTED")) as stream:
            assert append(stream, [1, 2, 3], offset=0).append_result.offset.value == 0
            assert refused(append(stream, [1, 2, 3], offset=0)) == ("ALREADY_EXISTS", "OFFSET_ALREADY_EXISTS")
            assert refused(append(stream, [6, 7], offset=5)) == ("OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE")
            assert keys(stand_in) == [1, 2, 3]
            assert append(stream, [4, 5], offset=3).append_result.offset.value == 3
            assert append(stream, [6]).append_result.offset.value == 5

        assert keys(stand_in) == [1, 2, 3, 4, 5, 6]

    def test_a_refused_row_leaves_the_offset_where_it_was(self, stand_in: StandIn, client: BigQueryWriteClient) -> None:
        with writing(stand_in, make(client, stand_in, "COMMITTED")) as stream:
            request = stream.request([{"k": 1}], messages=[b"\xff"])
            assert [error.index for error in stream.send(request).row_errors] == [1]
            assert append(stream, [1], offset=0).append_result.offset.value == 0

    def test_one_connection_only_is_active(self, stand_in: StandIn, client: BigQueryWriteClient) -> None:
        """ "Introduction to the Storage Write API", section "Connections"; several on the default stream."""
        name = make(client, stand_in, "COMMITTED")
        with writing(stand_in, name) as first, writing(stand_in, name) as second:
            append(first, [1])
            append(second, [2])
            with pytest.raises(grpc.RpcError) as closed:
                append(first, [3])
            assert closed.value.code() == grpc.StatusCode.ABORTED
        default = stand_in.stream("t")
        with writing(stand_in, default) as first, writing(stand_in, default) as second:
            for connection, key in ((first, 4), (second, 5), (first, 6)):
                append(connection, [key])
        assert keys(stand_in) == [1, 2, 4, 5, 6]


class TestPending:
    def test_two_streams_are_seen_together_or_not_at_all(self, stand_in: StandIn, client: BigQueryWriteClient) -> None:
        """ "Introduction to the Storage Write API", section "Pending type"."""
        names = [make(client, stand_in, "PENDING") for _ in range(2)]
        for number, name in enumerate(names):
            with writing(stand_in, name) as stream:
                append(stream, [2 * number, 2 * number + 1])
        request = types.BatchCommitWriteStreamsRequest(parent=parent(stand_in), write_streams=names)
        assert client.finalize_write_stream(name=names[0]).row_count == 2

        early = client.batch_commit_write_streams(request)
        assert [(error.code.name, error.entity) for error in early.stream_errors] == [
            ("INVALID_STREAM_STATE", names[1])
        ]
        assert keys(stand_in) == []
        client.finalize_write_stream(name=names[1])
        assert not client.batch_commit_write_streams(request).stream_errors
        assert keys(stand_in) == [0, 1, 2, 3]

        again = client.batch_commit_write_streams(request)
        assert {error.code.name for error in again.stream_errors} == {"STREAM_ALREADY_COMMITTED"}
        assert keys(stand_in) == [0, 1, 2, 3]


class TestBuffered:
    def test_rows_are_seen_up_to_where_they_are_flushed(self, stand_in: StandIn, client: BigQueryWriteClient) -> None:
        """ "Introduction to the Storage Write API", section "Buffered type"."""
        name = make(client, stand_in, "BUFFERED")
        with writing(stand_in, name) as stream:
            append(stream, [0, 1, 2])
            assert keys(stand_in) == []
            assert client.flush_rows(types.FlushRowsRequest(write_stream=name, offset=1)).offset == 1
            assert keys(stand_in) == [0, 1]
            with pytest.raises(exceptions.OutOfRange):
                client.flush_rows(types.FlushRowsRequest(write_stream=name, offset=3))

            assert client.finalize_write_stream(name=name).row_count == 3
            assert refused(append(stream, [3])) == ("INVALID_ARGUMENT", "STREAM_FINALIZED")
        client.flush_rows(types.FlushRowsRequest(write_stream=name, offset=2))
        assert keys(stand_in) == [0, 1, 2]


class TestNames:
    def test_the_default_stream_is_neither_made_nor_finalized(
        self, stand_in: StandIn, client: BigQueryWriteClient
    ) -> None:
        """ "Introduction to the Storage Write API", section "FinalizeWriteStream"."""
        with pytest.raises(exceptions.InvalidArgument, match="default stream"):
            client.finalize_write_stream(name=stand_in.stream("t"))
        with pytest.raises(exceptions.InvalidArgument):
            client.create_write_stream(parent=parent(stand_in), write_stream=types.WriteStream())
        with pytest.raises(exceptions.NotFound):
            client.create_write_stream(
                parent=parent(stand_in) + "x", write_stream=types.WriteStream(type_=types.WriteStream.Type.PENDING)
            )
        with pytest.raises(exceptions.NotFound):
            client.finalize_write_stream(name=parent(stand_in) + "/streams/none")

    def test_a_partition_decorator_is_no_table(self, stand_in: StandIn) -> None:
        """ "Introduction to the Storage Write API", section "Time-unit column partitioning"."""
        with writing(stand_in, stand_in.stream("t$20240101")) as stream, pytest.raises(grpc.RpcError) as closed:
            append(stream, [1])
        assert closed.value.code() == grpc.StatusCode.NOT_FOUND

    def test_get_write_stream_reports_the_type(self, stand_in: StandIn, client: BigQueryWriteClient) -> None:
        name = make(client, stand_in, "BUFFERED")

        assert client.get_write_stream(name=name).type_ == types.WriteStream.Type.BUFFERED


def test_the_official_writer_writes_changes(stand_in: StandIn, client: BigQueryWriteClient) -> None:
    message = row_message({**FIELDS, **CHANGE})
    template = types.AppendRowsRequest(write_stream=stand_in.stream("t"))
    template.proto_rows = types.AppendRowsRequest.ProtoData(writer_schema=types.ProtoSchema(proto_descriptor=message))
    stream = writer.AppendRowsStream(client, template)
    try:
        for rows in ([change("UPSERT", "1", k=1), change("UPSERT", "1", k=2)], [change("DELETE", "2", k=1)]):
            sent = types.ProtoRows(serialized_rows=serialized(message, rows))
            request = types.AppendRowsRequest(proto_rows=types.AppendRowsRequest.ProtoData(rows=sent))
            future: Any = stream.send(request)
            future.result(timeout=20)
    finally:
        stream.close()

    assert keys(stand_in) == [2]
