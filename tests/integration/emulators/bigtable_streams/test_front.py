"""The change-stream front before the real Bigtable emulator: what is written is what the stream tells, in order."""

from datetime import timedelta
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import FailedPrecondition, GoogleAPICallError, InvalidArgument, NotFound

from tests.integration.bigtable_front import (
    CLUSTER,
    Front,
    add_to_cell,
    code_of,
    delete_column,
    delete_family,
    delete_row,
    set_cell,
)

pytestmark = pytest.mark.integration

SOON = timedelta(milliseconds=100)


def entries(change: Any) -> list[str]:
    """Say what a change that is in one message consists of."""
    texts = []
    for chunk in change.chunks:
        kind = chunk.mutation.WhichOneof("mutation")
        detail = getattr(chunk.mutation, kind)
        what = [detail.family_name, *([] if kind == "delete_from_family" else [detail.column_qualifier.decode()])]
        texts.append(f"{kind} {':'.join(what)}")
    return texts


def test_every_kind_of_write_is_recorded_in_the_order_of_its_application(front: Front) -> None:
    table = front.table("f", "g")
    table.write(b"a", set_cell("f", b"q", b"1", 1000), set_cell("g", b"q", b"2", 1000))
    table.write(b"a", delete_column("f", b"q"), set_cell("f", b"q", b"3", 2000))
    table.write(b"a", delete_family("f"))
    table.write(b"a", delete_row())

    changes = table.changes()

    assert [(change.row_key, entries(change)) for change in changes] == [
        (b"a", ["set_cell f:q", "set_cell g:q"]),
        (b"a", ["delete_from_column f:q", "set_cell f:q"]),
        (b"a", ["delete_from_family f"]),
        (b"a", ["delete_from_family g"]),
    ]
    assert {change.source_cluster_id for change in changes} == {CLUSTER}
    commits = [change.commit_timestamp.ToMicroseconds() for change in changes]
    assert commits == sorted(set(commits))
    assert table.rows() == {}


def test_a_refused_row_changes_nothing_and_is_not_recorded(front: Front) -> None:
    table = front.table("f")

    with pytest.raises(NotFound, match="Requested column family not found"):
        table.write(b"a", set_cell("f", b"q", b"1"), set_cell("unknown", b"q", b"2"))
    with pytest.raises(InvalidArgument, match="granularity"):
        table.write(b"a", set_cell("f", b"q", b"1", 1), set_cell("f", b"r", b"2"))

    assert table.rows() == {}
    assert table.changes() == []


def aggregate(kind: str, **value: Any) -> Any:
    """Make an AddToCell or MergeToCell with any input."""
    mutation = add_to_cell("sums", b"q", 1_000, 1)
    if kind == "merge_to_cell":
        mutation.merge_to_cell.MergeFromString(mutation.add_to_cell.SerializeToString())
    detail = getattr(mutation, kind)
    detail.ClearField("input")
    detail.input.MergeFrom(type(detail.input)(**value))
    return mutation


@pytest.mark.parametrize(
    "refused",
    [
        set_cell("sums", b"q", b"1"),
        add_to_cell("f", b"q", 1_000, 1),
        aggregate("add_to_cell", raw_value=b"no number"),
        aggregate("merge_to_cell", int_value=1),
        aggregate("merge_to_cell", raw_value=b"no state"[:7]),
        set_cell("f", b"q", b"1", -2),
        delete_column("f", b"q", 2_000, 1_000),
        delete_column("f", b"q", 1),
        type(delete_row())(),
    ],
)
def test_what_the_emulator_would_half_apply_is_refused_as_a_whole(front: Front, refused: Any) -> None:
    table = front.table("f", aggregates=["sums"])

    with pytest.raises(InvalidArgument):
        table.write(b"a", set_cell("f", b"before", b"1"), refused)

    assert table.rows() == {}
    assert table.changes() == []


def test_a_read_modify_write_that_fails_at_its_second_rule_leaves_nothing_of_the_first(front: Front) -> None:
    table = front.table("f")
    table.write(b"a", set_cell("f", b"text", b"xyz", 1_000))
    append = {"family_name": "f", "column_qualifier": b"new", "append_value": b"+"}
    increment = {"family_name": "f", "column_qualifier": b"text", "increment_amount": 1}

    with pytest.raises(GoogleAPICallError, match="increment"):
        front.data.read_modify_write_row({"table_name": table.name, "row_key": b"a", "rules": [append, increment]})

    assert table.rows() == {b"a": {("f", b"text", 1_000): b"xyz"}}
    assert len(table.changes()) == 1


def test_two_rules_for_one_column_make_one_version(front: Front) -> None:
    table = front.table("f")
    append = {"family_name": "f", "column_qualifier": b"q", "append_value": b"+"}
    for _ in range(30):  # the emulator needs a millisecond between the rules to leave two
        front.data.read_modify_write_row({"table_name": table.name, "row_key": b"a", "rules": [append] * 40})

    streamed = {chunk.mutation.set_cell.timestamp_micros for change in table.changes() for chunk in change.chunks}

    assert {name[2] for name in table.rows()[b"a"]} == streamed


def test_a_split_and_a_merge_close_the_streams_with_tokens_to_go_on_from(front: Front) -> None:
    table = front.table("f")
    table.write(b"b", set_cell("f", b"q", b"1"))
    table.write(b"m", set_cell("f", b"q", b"2"))
    stream = table.read(start=table.since)
    first, second = next(stream), next(stream)
    front.control.split(table.name, b"h")
    closed = next(stream).close_stream

    assert (first.data_change.row_key, second.data_change.row_key) == (b"b", b"m")
    assert closed.status.code == grpc.StatusCode.OUT_OF_RANGE.value[0]
    ranges = [(each.row_range.start_key_closed, each.row_range.end_key_open) for each in closed.new_partitions]
    assert ranges == table.partitions() == [(b"", b"h"), (b"h", b"")]
    left, right = closed.continuation_tokens
    table.write(b"c", set_cell("f", b"q", b"3"))
    assert next(table.read(b"", b"h", tokens=[left])).data_change.row_key == b"c"
    front.control.merge(table.name, b"h")
    stale = next(table.read(b"", b"h", tokens=[left])).close_stream
    assert [each.row_range.end_key_open for each in stale.new_partitions] == [b""]
    merged = table.read(tokens=[*stale.continuation_tokens, right], heartbeat=SOON)
    assert next(merged).data_change.row_key == b"c"
    assert next(merged).HasField("heartbeat")


def test_tokens_must_cover_exactly_what_is_asked_for(front: Front) -> None:
    table = front.table("f", splits=[b"h"])
    left = next(table.read(b"", b"h", heartbeat=SOON)).heartbeat.continuation_token

    assert code_of(table.read(tokens=[left])) is grpc.StatusCode.INVALID_ARGUMENT
    unnamed = table.request(tokens=[left])
    unnamed.ClearField("partition")
    with pytest.raises(grpc.RpcError, match="the request names no partition: name the token's partition"):
        list(table.open(unnamed))
    assert code_of(table.read(b"", b"h", tokens=[left, left])) is grpc.StatusCode.INVALID_ARGUMENT
    left.token = "of no stream"  # noqa: S105
    assert code_of(table.read(b"", b"h", tokens=[left])) is grpc.StatusCode.INVALID_ARGUMENT


def test_heartbeats_move_on_and_an_end_time_ends_the_stream(front: Front) -> None:
    table = front.table("f")
    first, second = (message.heartbeat for message, _ in zip(table.read(heartbeat=SOON), range(2), strict=False))
    assert first.estimated_low_watermark.ToMicroseconds() < second.estimated_low_watermark.ToMicroseconds()

    (closed,) = table.read(end=front.control.describe(table.name).now)
    assert closed.close_stream.status.code == 0
    assert not closed.close_stream.continuation_tokens


def test_a_table_without_a_stream_is_refused_and_its_old_tokens_with_it(front: Front) -> None:
    table = front.table("f", retention=None)
    assert code_of(table.read()) is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(FailedPrecondition):
        table.partitions()

    def retain(duration: timedelta | None) -> Any:
        config = {} if duration is None else {"retention_period": duration}
        wanted = {"name": table.name, "change_stream_config": config}
        mask = {"paths": ["change_stream_config"]}
        return front.tables.update_table({"table": wanted, "update_mask": mask}).result(timeout=10)  # type: ignore[no-untyped-call]

    for refused in (timedelta(days=1, microseconds=-1), timedelta(days=7, microseconds=1), timedelta(0)):
        with pytest.raises(InvalidArgument, match="retention_period"):
            retain(refused)
        with pytest.raises(InvalidArgument, match="retention_period"):
            front.table("f", retention=refused)
    assert "change_stream_config" not in front.tables.get_table(name=table.name)
    retain(timedelta(days=7))
    shown = front.tables.get_table(name=table.name)
    assert shown.change_stream_config.retention_period == timedelta(days=7)
    token = next(table.read(heartbeat=SOON)).heartbeat.continuation_token
    retain(None)
    retain(timedelta(days=1))
    assert code_of(table.read(tokens=[token])) is grpc.StatusCode.INVALID_ARGUMENT
