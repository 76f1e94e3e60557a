"""Streams in trouble, on demand: late, cut, slow, expired, moved; and how finely a change can be cut."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import DeadlineExceeded, FailedPrecondition, PermissionDenied, ServiceUnavailable

from tests.integration.bigtable_front import INSTANCE, Front, FrontTable, code_of, set_cell
from tests.integration.bigtable_messages import put_together

pytestmark = pytest.mark.integration

SOON = timedelta(milliseconds=50)


@pytest.fixture
def front(bigtable_front: str) -> Iterator[Front]:
    with Front(bigtable_front) as front:
        yield front
        front.control.clear_faults()
        front.control.serve_streams(
            held=False, seconds_per_change=0, value_bytes=1_000_000, message_bytes=1_000_000, message_chunks=1_000
        )


def write_rows(table: FrontTable, *keys: bytes) -> None:
    for key in keys:
        table.write(key, set_cell("f", b"q", b"v"))


def keys_of(messages: Any) -> list[bytes]:
    return [message.data_change.row_key for message in messages]


def ranges(messages: Any) -> list[tuple[bytes, bytes]]:
    return [(each.row_range.start_key_closed, each.row_range.end_key_open) for each in messages]


def until(call: Any, kind: str) -> Any:
    """Return the next message of a kind."""
    return next(message for message in call if message.HasField(kind))


def test_the_documented_merge_closes_with_the_tokens_and_partitions_it_names(front: Front) -> None:
    """bigtable.proto, CloseStream: [B, D) ends; new [A, C), [C, E); tokens [B, C), [C, D)."""
    table = front.table("f", splits=[b"B", b"D", b"E"])
    write_rows(table, b"A1", b"B1", b"C1", b"D1")
    old = table.read(b"B", b"D", start=table.since)
    first = next(old).data_change
    left = until(table.read(b"", b"B", start=table.since), "data_change").data_change.token
    front.control.serve_streams(held=True)
    front.control.repartition(table.name, [b"C", b"E"])

    closed = until(old, "close_stream").close_stream

    assert first.row_key == b"B1"
    assert ranges(closed.new_partitions) == [(b"", b"C"), (b"C", b"E")]
    assert ranges(each.partition for each in closed.continuation_tokens) == [(b"B", b"C"), (b"C", b"D")]
    front.control.serve_streams(held=False)
    a_to_b = type(closed.continuation_tokens[0])(token=left)
    a_to_b.partition.row_range.start_key_closed, a_to_b.partition.row_range.end_key_open = b"", b"B"
    write_rows(table, b"A2")
    merged = table.read(b"", b"C", tokens=[a_to_b, closed.continuation_tokens[0]])
    assert next(merged).data_change.row_key == b"A2"


def test_a_merged_partition_goes_on_for_each_range_from_its_own_place(front: Front) -> None:
    table = front.table("f", splits=[b"m"])
    ahead, behind = table.read(b"", b"m", start=table.since), table.read(b"m", b"", start=table.since)
    write_rows(table, b"a1", b"z1", b"a2", b"z2")
    assert keys_of(islice(ahead, 2)) == [b"a1", b"a2"]
    assert keys_of(islice(behind, 1)) == [b"z1"]
    front.control.serve_streams(held=True)
    token_behind = front_token(table, b"m", b"", until_key=b"z1")
    front.control.merge(table.name, b"m")
    token_ahead = until(ahead, "close_stream").close_stream.continuation_tokens[0]
    front.control.serve_streams(held=False)
    write_rows(table, b"a3")

    merged = table.read(tokens=[token_ahead, token_behind])

    first = next(merged).data_change
    assert first.row_key == b"z2", "a2 is behind one token and before the other"
    again = type(token_ahead)(token=first.token)
    again.partition.row_range.start_key_closed, again.partition.row_range.end_key_open = b"", b""
    assert keys_of(islice(table.read(tokens=[again]), 1)) == [b"a3"]
    assert keys_of(islice(merged, 1)) == [b"a3"]


def front_token(table: FrontTable, start: bytes, end: bytes, until_key: bytes) -> Any:
    """Return a token of a range behind the first change of a row."""
    table.front.control.serve_streams(held=False)
    for message in table.read(start, end, start=table.since):
        if message.data_change.row_key == until_key:
            token = type(message.heartbeat.continuation_token)(token=message.data_change.token)
            token.partition.row_range.start_key_closed, token.partition.row_range.end_key_open = start, end
            table.front.control.serve_streams(held=True)
            return token
    raise AssertionError("the row never came")


def test_a_moved_partition_closes_and_is_served_again(front: Front) -> None:
    table = front.table("f")
    stream = table.read(heartbeat=SOON)
    next(stream)
    front.control.move(table.name, b"anything")
    closed = until(stream, "close_stream").close_stream
    assert ranges(closed.new_partitions) == [(b"", b"")]
    write_rows(table, b"a")
    assert keys_of(islice(table.read(tokens=closed.continuation_tokens), 1)) == [b"a"]


def test_many_entries_are_split_over_messages_and_several_chunks_may_share_a_message(front: Front) -> None:
    front.control.serve_streams(value_bytes=10, message_bytes=25, message_chunks=3)
    table = front.table("f")
    values = [bytes([65 + n]) * n for n in range(30)]
    table.write(b"a", *(set_cell("f", b"%d" % n, value, 1_000) for n, value in enumerate(values)))

    messages = table.changes()

    assert len(messages) > 10
    assert max(len(message.chunks) for message in messages) > 1
    assert [entry.set_cell.value for entry in put_together(messages).entries] == values


def test_heartbeats_continue_while_changes_are_slow_or_paused(front: Front) -> None:
    front.control.serve_streams(held=True)
    table = front.table("f")
    write_rows(table, *(b"r%03d" % n for n in range(100)))
    stream = table.read(start=table.since, heartbeat=SOON)
    for _ in range(3):
        heartbeat = next(stream).heartbeat
    assert front.control.describe(table.name).streams[0].behind == 100
    (first, *_) = keys_of(islice(table.read(tokens=[heartbeat.continuation_token], end=None, heartbeat=SOON), 1))
    assert first == b"", "held: a heartbeat"
    front.control.serve_streams(held=False, seconds_per_change=0.01)
    kinds = [message.WhichOneof("stream_record") for message in islice(stream, 60)]
    assert kinds.count("heartbeat") > 2
    assert kinds.count("data_change") > 2


def test_a_stalled_watermark_stands_still_and_changes_come_all_the_same(front: Front) -> None:
    table = front.table("f")
    front.control.stall_watermark(table.name)
    stalled = next(table.read(heartbeat=SOON)).heartbeat.estimated_low_watermark
    stream = table.read(start=table.since, heartbeat=SOON, end=front.control.describe(table.name).now)
    write_rows(table, b"a")
    change = table_change(table)
    assert change.estimated_low_watermark == stalled
    assert next(stream).HasField("heartbeat"), "with an end time that the watermark does not reach it does not end"
    front.control.stall_watermark(table.name, stalled=False)
    assert until(stream, "close_stream").close_stream.status.code == 0


def table_change(table: FrontTable) -> Any:
    return until(table.read(start=table.since), "data_change").data_change


def test_positions_before_the_trimmed_records_are_expired(front: Front) -> None:
    table = front.table("f", splits=[b"m"])
    token = next(table.read(b"", b"m", heartbeat=SOON)).heartbeat.continuation_token
    idle = next(table.read(b"m", b"", heartbeat=SOON)).heartbeat.continuation_token
    write_rows(table, b"a")
    since = table.since
    front.control.serve_streams(held=True)
    open_stream = table.open(table.request(b"", b"m", tokens=[token], heartbeat=SOON))
    next(open_stream)
    front.control.trim(table.name)

    assert code_of(open_stream) is grpc.StatusCode.OUT_OF_RANGE
    assert code_of(table.read(b"", b"m", tokens=[token])) is grpc.StatusCode.OUT_OF_RANGE
    assert code_of(table.read(b"", b"m", start=since)) is grpc.StatusCode.OUT_OF_RANGE
    assert next(table.read(b"m", b"", tokens=[idle], heartbeat=SOON)).HasField("heartbeat"), "nothing of it is gone"


def test_a_start_must_be_within_the_retention_and_not_in_the_future(front: Front) -> None:
    table = front.table("f")
    now = front.control.describe(table.name).now
    assert code_of(table.read(start=now + 60_000_000)) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(table.read(start=table.since - 1)) is grpc.StatusCode.INVALID_ARGUMENT
    write_rows(table, b"a", b"b")
    second = table.changes()[1].commit_timestamp.ToMicroseconds()
    assert keys_of(table.read(start=second, end=second))[:-1] == [b"b"], "both ends belong to it"


def test_a_table_made_again_does_not_take_the_old_ones_tokens(front: Front) -> None:
    table = front.table("f")
    token = next(table.read(heartbeat=SOON)).heartbeat.continuation_token
    stream = table.open(table.request(tokens=[token]))
    front.tables.delete_table(name=table.name)
    assert code_of(stream) is grpc.StatusCode.FAILED_PRECONDITION
    assert code_of(table.read(tokens=[token])) is grpc.StatusCode.NOT_FOUND
    made = {"change_stream_config": {"retention_period": timedelta(days=1)}, "column_families": {"f": {}}}
    front.tables.create_table({"parent": INSTANCE, "table_id": table.name.rsplit("/", 1)[-1], "table": made})
    assert code_of(table.read(tokens=[token])) is grpc.StatusCode.INVALID_ARGUMENT


def test_any_call_fails_on_demand_before_or_after_it_is_done(front: Front) -> None:
    table = front.table("f")
    about = table.name.encode()
    front.control.add_fault(method="MutateRow", status="PERMISSION_DENIED", times=1, containing=about)
    with pytest.raises(PermissionDenied):
        write_rows(table, b"before")
    front.control.add_fault(method="MutateRow", status="UNAVAILABLE", when="after", times=1, containing=about)
    request = {"table_name": table.name, "row_key": b"after", "mutations": [{"set_cell": {"family_name": "f"}}]}
    with pytest.raises(ServiceUnavailable):
        front.data.mutate_row(request, retry=None)
    assert list(table.rows()) == [b"after"]
    assert keys_of(table_messages(table)) == [b"after"]
    fault = front.control.add_fault(method="ReadRows", status="PERMISSION_DENIED", containing=about)
    with pytest.raises(PermissionDenied):
        table.rows()
    front.control.clear_faults(fault)
    front.control.add_fault(method="ReadChangeStream", status="PERMISSION_DENIED", containing=about)
    assert code_of(table.read()) is grpc.StatusCode.PERMISSION_DENIED
    front.control.clear_faults()
    stalled = front.control.add_fault(method="GetTable", action="stall", containing=about)
    with pytest.raises(DeadlineExceeded):
        front.tables.get_table(name=table.name, timeout=0.3, retry=None)
    front.control.clear_faults(stalled)
    assert front.tables.get_table(name=table.name).name == table.name


def table_messages(table: FrontTable) -> list[Any]:
    end = table.front.control.describe(table.name).now
    return [message for message in table.read(start=table.since, end=end) if message.HasField("data_change")]


def test_calls_that_read_and_write_at_once_need_a_profile_that_allows_them(front: Front) -> None:
    table = front.table("f")
    plain = front.app_profile(transactional=False)
    rule = {"family_name": "f", "column_qualifier": b"q", "increment_amount": 1}
    with pytest.raises(FailedPrecondition):
        front.data.read_modify_write_row(
            {"table_name": table.name, "row_key": b"a", "rules": [rule], "app_profile_id": plain}
        )
    with pytest.raises(FailedPrecondition):
        front.data.check_and_mutate_row(
            {
                "table_name": table.name,
                "row_key": b"a",
                "app_profile_id": plain,
                "true_mutations": [{"delete_from_row": {}}],
            }
        )
    assert table.changes() == []
