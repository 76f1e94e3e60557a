"""What the write API refuses, and how: in the answer, row by row, or by closing the stream."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.cloud.bigquery_storage_v1 import types
from google.rpc import status_pb2

from tests.integration.stand_in import (
    PROJECT,
    AppendRowsRequest,
    StandIn,
    StorageError,
    Writing,
    get_write_stream,
    storage_error,
)
from tests.row_messages import CHANGE, change, row_message, serialized

pytestmark = pytest.mark.integration

KEY_VALUE = {"k": "int64", "v": "string", **CHANGE}
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


@pytest.fixture
def stand_in(bigquery_stand_in: tuple[str, str]) -> StandIn:
    stand_in = StandIn(bigquery_stand_in)
    stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    return stand_in


def rows_of(stand_in: StandIn) -> list[tuple[Any, ...]]:
    return stand_in.run("SELECT k, v FROM t ORDER BY k")


class TestRowErrors:
    def test_one_bad_row_refuses_the_whole_request_and_the_rest_can_be_sent_again(self, stand_in: StandIn) -> None:
        """storage.proto: "If a request failed due to corrupted rows, no rows in the batch will be appended"."""
        good = [change("UPSERT", "1", k=number, v="x") for number in range(5)]
        bad = [change("UPSERT", "not hexadecimal", k=8), change("REMOVE", "1", k=9)]

        with stand_in.writing("t", KEY_VALUE) as writing:
            refused = writing.append([*good[:2], *bad, *good[2:]])
            assert refused.error.code == INVALID
            assert [(error.index, error.code) for error in refused.row_errors] == [
                (2, types.RowError.RowErrorCode.FIELDS_ERROR),
                (3, types.RowError.RowErrorCode.FIELDS_ERROR),
            ]
            assert rows_of(stand_in) == []

            accepted = writing.append(good)
        assert accepted.HasField("append_result")
        assert rows_of(stand_in) == [(number, "x") for number in range(5)]

    def test_bytes_that_are_no_message_are_one_rows_error(self, stand_in: StandIn) -> None:
        good = serialized(row_message(KEY_VALUE), [change("UPSERT", "1", k=1, v="x")])

        with stand_in.writing("t", KEY_VALUE) as writing:
            answer = writing.send(writing.request(messages=[*good, b"\xff\xff", b"\x12\x02\xff\xfe"]))

        assert [error.index for error in answer.row_errors] == [1, 2]
        assert rows_of(stand_in) == []

    def test_a_change_without_its_key_is_refused(self, stand_in: StandIn) -> None:
        answer = stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", v="x"), change("DELETE", "1")])

        assert [error.index for error in answer.row_errors] == [0, 1]

    def test_a_required_column_is_required_except_of_a_delete(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE r (k INT64, v STRING NOT NULL, PRIMARY KEY (k) NOT ENFORCED)")

        answer = stand_in.append("r", KEY_VALUE, [change("DELETE", "1", k=1), change("UPSERT", "1", k=2)])

        assert [error.index for error in answer.row_errors] == [1]


class TestChangesAndPlainRows:
    def test_a_table_without_a_primary_key_takes_no_changes(self, stand_in: StandIn) -> None:
        """ "Stream table updates with change data capture", prerequisites."""
        stand_in.run("CREATE TABLE keyless (k INT64, v STRING)")

        answer = stand_in.append("keyless", KEY_VALUE, [change("UPSERT", "1", k=1, v="x")])

        assert answer.error.code == INVALID
        assert not answer.row_errors
        assert "primary key" in answer.error.message
        assert stand_in.run("SELECT * FROM keyless") == []

    @pytest.mark.parametrize("changes_first", [True, False])
    def test_one_connection_carries_changes_or_plain_rows_not_both(
        self, stand_in: StandIn, changes_first: bool
    ) -> None:
        requests: list[list[dict[str, Any]]] = [[change("UPSERT", "1", k=1, v="x")], [{"k": 2, "v": "plain"}]]
        first, second = requests if changes_first else requests[::-1]
        with stand_in.writing("t", KEY_VALUE) as writing:
            assert not writing.append(first).HasField("error")
            answer = writing.append(second)

        assert [error.message for error in answer.row_errors] == ["The given value is not a valid CHANGE_TYPE"]
        assert rows_of(stand_in) == ([(1, "x")] if changes_first else [(2, "plain")])

    def test_nor_does_one_request(self, stand_in: StandIn) -> None:
        answer = stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", k=1, v="x"), {"k": 2, "v": "plain"}])

        assert [error.index for error in answer.row_errors] == [1]
        assert rows_of(stand_in) == []

    @pytest.mark.parametrize(
        ("table", "code", "words"), [("t", "INVALID_ARGUMENT", "Arrow"), ("keyless", "UNIMPLEMENTED", "arrow_rows")]
    )
    def test_changes_in_arrow_are_refused_and_plain_rows_are_not_served(
        self, stand_in: StandIn, table: str, code: str, words: str
    ) -> None:
        """ "Stream table updates with change data capture", prerequisites: "You must use the protobuf format"."""
        stand_in.run("CREATE TABLE keyless (k INT64, v STRING)")
        with stand_in.writing(table, KEY_VALUE) as writing:
            request = writing.request()
            request.arrow_rows.rows.serialized_record_batch = b"anything"
            answer = writing.send(request)

        assert answer.error.code == grpc.StatusCode[code].value[0]
        assert words in answer.error.message

    def test_a_service_that_is_not_served_is_named(self, stand_in: StandIn) -> None:
        method = "google.cloud.bigquery.reservation.v1.ReservationService/ListReservations"
        with grpc.insecure_channel(stand_in.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{method}", bytes, bytes)(b"", timeout=10)

        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert method in str(refused.value.details())


class TestWriterSchema:
    def test_a_field_that_is_no_column_is_a_schema_mismatch(self, stand_in: StandIn) -> None:
        """ "Storage Write API best practices", section "Manage schema updates"."""
        fields = {**KEY_VALUE, "added": "string"}

        answer = stand_in.append("t", fields, [change("UPSERT", "1", k=1, v="x", added="y")])

        assert answer.error.code == INVALID
        assert storage_error(answer.error.details).code == StorageError.SCHEMA_MISMATCH_EXTRA_FIELDS
        assert rows_of(stand_in) == []

    def test_after_a_column_is_added_new_connections_accept_it_and_old_ones_get_the_updated_schema(
        self, stand_in: StandIn
    ) -> None:
        """ "Storage Write API best practices", section "Manage schema updates"."""
        with stand_in.writing("t", KEY_VALUE) as old:
            assert not old.append([change("UPSERT", "1", k=1, v="x")]).HasField("updated_schema")
            stand_in.run("ALTER TABLE t ADD COLUMN added STRING")
            answer = old.append([change("UPSERT", "1", k=2, v="y")])
            assert [field.name for field in answer.updated_schema.fields] == ["k", "v", "added"]
            assert not old.append([change("UPSERT", "1", k=3, v="z")]).HasField("updated_schema")
        stand_in.append("t", {**KEY_VALUE, "added": "string"}, [change("UPSERT", "2", k=1, v="x", added="new")])

        assert stand_in.run("SELECT * FROM t ORDER BY k") == [(1, "x", "new"), (2, "y", None), (3, "z", None)]

    def test_a_client_that_sends_its_schema_in_every_request_gets_the_updated_one(self, stand_in: StandIn) -> None:
        """As Google's Node client does: @google-cloud/bigquery-storage, managedwriter/writer.ts."""
        with stand_in.writing("t", KEY_VALUE) as writing:

            def append(number: int) -> Any:
                request = writing.request([change("UPSERT", "1", k=number, v="x")])
                request.proto_rows.writer_schema.proto_descriptor.CopyFrom(row_message(KEY_VALUE))
                return writing.send(request).updated_schema

            assert append(1).fields == []
            stand_in.run("ALTER TABLE t ADD COLUMN added STRING")
            assert [field.name for field in append(2).fields] == ["k", "v", "added"]
            assert append(3).fields == []

    @pytest.mark.parametrize("elsewhere", [".elsewhere.Colour", ".some.package.Row.Colour"])
    def test_types_outside_the_root_message_are_refused(self, stand_in: StandIn, elsewhere: str) -> None:
        """ "Introduction to the Storage Write API", section "Work with protocol buffers": no package, no references."""
        descriptor = row_message({"k": "int64", "v": "enum"})
        descriptor.field[1].type_name = elsewhere

        with Writing(stand_in.grpc, stand_in.stream("t"), descriptor) as writing:
            request = AppendRowsRequest(write_stream=stand_in.stream("t"))
            request.proto_rows.writer_schema.proto_descriptor.CopyFrom(descriptor)
            answer = writing.send(request)

        assert answer.error.code == INVALID
        assert "Invalid proto schema" in answer.error.message

    def test_a_repeated_field_does_not_fit_a_column_of_single_values(self, stand_in: StandIn) -> None:
        descriptor = row_message({"k": "int64", "v": "string"}, repeated=["v"])
        with Writing(stand_in.grpc, stand_in.stream("t"), descriptor) as writing:
            assert writing.send(writing.request()).error.code == INVALID


class TestRequests:
    def closes(self, stand_in: StandIn, spoil: Callable[[Any], None], **options: Any) -> Any:
        with stand_in.writing("t", KEY_VALUE, **options) as writing:
            request = writing.request([change("UPSERT", "1", k=1, v="x")])
            spoil(request)
            with pytest.raises(grpc.RpcError) as closed:
                writing.send(request)
        assert rows_of(stand_in) == []
        return closed.value

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda request: request.ClearField("write_stream"),
            lambda request: request.proto_rows.ClearField("writer_schema"),
            lambda request: setattr(request, "write_stream", "projects/p/tables/t"),
        ],
        ids=["no stream name", "no writer schema", "no such form of name"],
    )
    def test_the_first_request_names_stream_and_schema(self, stand_in: StandIn, spoil: Callable[[Any], None]) -> None:
        """ "Introduction to the Storage Write API", section "AppendRows"."""
        assert self.closes(stand_in, spoil).code() == grpc.StatusCode.INVALID_ARGUMENT

    @pytest.mark.parametrize(
        ("routing", "words"),
        [
            ("write_stream=", "Cannot route"),
            ("write_stream=datasets/d", "Cannot route"),
            ("name=projects/millrace-test", "Cannot route"),
            ("write_stream=projects/another/datasets/d/tables/t/streams/_default", "routing header"),
            (f"write_stream=projects/{PROJECT}/datasets/d/tables/t/streams/_default", "routing header"),
            ("write_location=projects/another/locations/us", "routing header"),
        ],
    )
    def test_a_routing_header_names_a_project_and_leads_to_the_stream(
        self, stand_in: StandIn, routing: str, words: str
    ) -> None:
        """ "Introduction to the Storage Write API", section "Client library support"."""
        closed = self.closes(stand_in, lambda _request: None, routing=routing)

        assert closed.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert words in closed.details()

    def test_a_call_of_one_answer_is_routed_too(self, stand_in: StandIn) -> None:
        """storage.proto, `google.api.routing` by way of each method's HTTP rule."""
        request = types.GetWriteStreamRequest.pb()(name=stand_in.stream("t"))
        with grpc.insecure_channel(stand_in.grpc) as channel:
            get = channel.unary_unary(
                "/google.cloud.bigquery.storage.v1.BigQueryWrite/GetWriteStream",
                request_serializer=types.GetWriteStreamRequest.pb().SerializeToString,
                response_deserializer=types.WriteStream.pb().FromString,
            )
            assert get(request, timeout=10).name == stand_in.stream("t")
            with pytest.raises(grpc.RpcError) as refused:
                get(request, metadata=(("x-goog-request-params", f"name={stand_in.stream('u')}"),), timeout=10)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    @pytest.mark.parametrize(
        ("old", "new", "storage_code"),
        [
            ("tables/t/", "tables/missing/", StorageError.TABLE_NOT_FOUND),
            ("streams/_default", "streams/committed-1", StorageError.STREAM_NOT_FOUND),
        ],
    )
    def test_what_does_not_exist_closes_the_stream_with_a_storage_error_in_the_trailers(
        self, stand_in: StandIn, old: str, new: str, storage_code: int
    ) -> None:
        stream = stand_in.stream("t").replace(old, new)

        def rename(request: Any) -> None:
            request.write_stream = stream

        closed = self.closes(stand_in, rename, routing=f"write_stream={stream}")

        assert closed.code() == grpc.StatusCode.NOT_FOUND
        status = status_pb2.Status.FromString(dict(closed.trailing_metadata())["grpc-status-details-bin"])
        assert status.code == grpc.StatusCode.NOT_FOUND.value[0]
        assert storage_error(status.details).code == storage_code

    def test_a_table_dropped_and_made_again_is_another_table(self, stand_in: StandIn) -> None:
        with stand_in.writing("t", KEY_VALUE) as writing:
            writing.append([change("UPSERT", "1", k=1, v="x")])
            stand_in.run("CREATE OR REPLACE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
            with pytest.raises(grpc.RpcError) as closed:
                writing.append([change("UPSERT", "1", k=2, v="y")])

        assert closed.value.code() == grpc.StatusCode.NOT_FOUND
        assert rows_of(stand_in) == []

    def test_twenty_megabytes_are_refused_and_the_connection_goes_on(self, stand_in: StandIn) -> None:
        """storage.proto, AppendRowsRequest: "must be less than 20 MB in size"."""
        rows = [change("UPSERT", "1", k=number, v="x" * 10_000_000) for number in range(2)]
        with stand_in.writing("t", KEY_VALUE) as writing:
            assert not writing.append(rows[:1]).HasField("error")
            assert writing.append(rows).error.code == INVALID
            assert not writing.append(rows[1:2]).HasField("error")

        assert stand_in.run("SELECT count(*) FROM t") == [(2,)]

    def test_an_offset_has_no_place_on_the_default_stream(self, stand_in: StandIn) -> None:
        with stand_in.writing("t", KEY_VALUE) as writing:
            request = writing.request([change("UPSERT", "1", k=1, v="x")])
            request.offset.value = 0

            assert writing.send(request).error.code == INVALID

    def test_both_forms_of_the_default_streams_name_are_known(self, stand_in: StandIn) -> None:
        with stand_in.writing("t", KEY_VALUE) as writing:
            request = writing.request([change("UPSERT", "1", k=1, v="x")])
            request.write_stream = request.write_stream.replace("/streams/_default", "/_default")
            assert not writing.send(request).HasField("error")

        stream = get_write_stream(stand_in.grpc, stand_in.stream("t"), types.WriteStreamView.FULL)
        assert stream.name == stand_in.stream("t")
        assert [(field.name, field.type_) for field in stream.table_schema.fields] == [
            ("k", types.TableFieldSchema.Type.INT64),
            ("v", types.TableFieldSchema.Type.STRING),
        ]
        with pytest.raises(grpc.RpcError) as closed:
            get_write_stream(stand_in.grpc, stand_in.stream("missing"), types.WriteStreamView.BASIC)
        assert closed.value.code() == grpc.StatusCode.NOT_FOUND

    def test_a_connection_may_change_its_table_with_a_new_schema(self, stand_in: StandIn) -> None:
        """storage.proto: "You can also switch table destinations within the same connection for the default stream"."""
        stand_in.run("CREATE TABLE u (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        with stand_in.writing("t", KEY_VALUE) as first, stand_in.writing("u", KEY_VALUE) as second:
            first.append([change("UPSERT", "1", k=1, v="x")])
            assert not first.send(second.request([change("UPSERT", "1", k=2, v="y")])).HasField("error")
            without_schema = second.request([change("UPSERT", "1", k=3, v="z")])
            without_schema.write_stream = stand_in.stream("t")
            with pytest.raises(grpc.RpcError):
                first.send(without_schema)

        assert rows_of(stand_in) == [(1, "x")]
        assert stand_in.run("SELECT k, v FROM u") == [(2, "y")]
