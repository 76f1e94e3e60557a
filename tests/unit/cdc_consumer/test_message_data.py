"""Messages' data beside Spark or compressed: what was kept is read again whole, or not at all; no file of it stays."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cdc_consumer.adapters.spark.spark_session import KEEP_MEMORY
from services.cdc_consumer.adapters.stream.message_data import DataFile, compress, forget_data, with_data
from services.cdc_consumer.adapters.stream.pulling import to_record_batch
from services.cdc_consumer.core.stream.messages import KEPT_SCHEMA, MESSAGE_SCHEMA
from shared.pubsub.stubs import PullResponse


def an_answer(*data: bytes) -> object:
    return PullResponse(
        received_messages=[
            {"ack_id": f"lease {number}", "message": {"data": each, "message_id": f"{number}"}}
            for number, each in enumerate(data)
        ]
    )


def kept(directory: Path, *answers: tuple[bytes, ...]) -> pa.Table:
    with DataFile(directory) as file:
        return pa.Table.from_batches([to_record_batch(an_answer(*data), file.keep) for data in answers], KEPT_SCHEMA)


def test_rows_of_several_files_in_any_order_get_their_own_data_again(tmp_path: Path) -> None:
    one = kept(tmp_path, (b"\x00\xff", b""), (b"x" * 300_000,))
    other = kept(tmp_path, (b"other",))
    rows = pa.concat_tables([other, one]).take([3, 0, 1, 2])
    assert rows["data"].null_count == 4

    whole = with_data(rows, tmp_path)

    assert whole.schema.equals(MESSAGE_SCHEMA)
    assert whole["data"].to_pylist() == [b"x" * 300_000, b"other", b"\x00\xff", b""]
    assert whole["ack_id"].to_pylist() == ["lease 0", "lease 0", "lease 0", "lease 1"]


def test_much_data_is_in_pieces_for_which_no_new_memory_is_asked(tmp_path: Path) -> None:
    data = [bytes([number]) * (9 << 20) for number in range(5)]

    pieces = with_data(kept(tmp_path, tuple(data)), tmp_path)["data"]

    assert pieces.to_pylist() == data
    assert [len(piece) for piece in pieces.chunks] == [1, 2, 2]
    assert max(piece.nbytes for piece in pieces.chunks) < int(KEEP_MEMORY["MALLOC_MMAP_THRESHOLD_"])


@pytest.mark.parametrize("in_files", [True, False])
def test_source_and_sink_that_do_not_agree_where_data_is_are_an_error(tmp_path: Path, *, in_files: bool) -> None:
    compressed = pa.Table.from_batches([to_record_batch(an_answer(b"here"), compress)])
    rows, directory = (kept(tmp_path, (b"here",)), None) if in_files else (compressed, tmp_path)

    with pytest.raises(ValueError, match="do not agree whether their data is in files"):
        with_data(rows, directory)


def test_data_that_is_not_there_any_more_or_not_whole_is_an_error(tmp_path: Path) -> None:
    rows = kept(tmp_path, (b"first", b"second"))
    (path,) = tmp_path.iterdir()

    os.truncate(path, 7)
    with pytest.raises(ValueError, match="2 bytes of a message's data where 6 were kept"):
        with_data(rows, tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        with_data(rows, tmp_path)


@given(st.lists(st.binary() | st.builds(lambda part, times: part * times, st.binary(min_size=1), st.integers(1, 999))))
def test_data_that_was_compressed_comes_as_it_was(data: list[bytes]) -> None:
    rows = pa.Table.from_batches([to_record_batch(an_answer(*data), compress)], KEPT_SCHEMA)
    whole = with_data(rows, None)
    assert whole.schema.equals(MESSAGE_SCHEMA)
    assert whole["data"].to_pylist() == data


def test_large_data_is_compressed_and_short_data_is_not() -> None:
    carried, told = compress([b"short", b"long" * 1_000])
    assert carried[0] == b"short"
    assert len(carried[1] or b"") < 100
    assert [each and each.split(":")[0] for each in told] == ["5", "4000"]


@pytest.mark.parametrize("data", [b"short", bytes(range(256)) * 8])
def test_data_that_is_damaged_on_the_way_is_an_error(data: bytes) -> None:
    (carried,), told = compress([data])
    assert carried is not None
    damaged = bytes([carried[0] ^ 1, *carried[1:]])
    rows = pa.Table.from_batches([to_record_batch(an_answer(b""), lambda _data: ([damaged], told))], KEPT_SCHEMA)
    with pytest.raises(ValueError, match="not those which were sent"):
        with_data(rows, None)


def test_files_are_closed_and_a_task_without_messages_makes_none(tmp_path: Path) -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    rows = kept(tmp_path, (b"a",), (b"b",))
    with_data(rows, tmp_path)
    with DataFile(tmp_path):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert len(list(tmp_path.iterdir())) == 1


def test_files_of_an_earlier_micro_batch_are_written_over_and_no_others(tmp_path: Path) -> None:
    first = [kept(tmp_path, (b"of the first micro-batch",)), kept(tmp_path, (b"of its other task",))]
    assert with_data(pa.concat_tables(first), tmp_path)["data"][1].as_py() == b"of its other task"
    (tmp_path / "another's").touch()
    inodes = {path.stat().st_ino for path in tmp_path.iterdir()}
    forget_data(tmp_path)
    forget_data(tmp_path)

    second = [kept(tmp_path, (b"short", b"er")), kept(tmp_path, (b"x" * 300_000,)), kept(tmp_path, (b"third",))]
    whole = with_data(pa.concat_tables(second), tmp_path)

    assert whole["data"].to_pylist() == [b"short", b"er", b"x" * 300_000, b"third"]
    assert inodes < {path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 4
