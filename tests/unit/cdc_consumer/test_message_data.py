"""Messages on their way through Spark: their data, in files or compressed, comes whole or not at all; no file stays."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cdc_consumer.adapters.spark.partitioning import numbers_for, partition_of
from services.cdc_consumer.adapters.spark.spark_session import KEEP_MEMORY
from services.cdc_consumer.adapters.stream.data_files import DataFile, forget_data
from services.cdc_consumer.adapters.stream.message_data import unpack, with_data
from services.cdc_consumer.adapters.stream.pulling import to_portions
from services.cdc_consumer.core.stream.messages import MESSAGE_SCHEMA, PORTION_SCHEMA
from shared.pubsub.stubs import PullResponse

ROOT = Path(__file__).resolve().parents[3]


def an_answer(*data: bytes, keys: Sequence[str] = ()) -> object:
    return PullResponse(
        received_messages=[
            {"ack_id": f"lease {number}", "message": {"data": each, "message_id": f"{number}", "ordering_key": key}}
            for number, (each, key) in enumerate(zip_longest(data, keys, fillvalue=""))
        ]
    )


def whole(*portions: pa.RecordBatch) -> pa.Table:
    messages, damaged = unpack(portions)
    assert not damaged
    return messages


def kept(directory: Path, *answers: tuple[bytes, ...]) -> pa.Table:
    with DataFile(directory) as file:
        return whole(*(to_portions(an_answer(*data), (0,), file) for data in answers))


def test_rows_of_several_files_in_any_order_get_their_own_data_again(tmp_path: Path) -> None:
    one = kept(tmp_path, (b"\x00\xff", b""), (b"x" * 300_000,))
    other = kept(tmp_path, (b"other",))
    rows = pa.concat_tables([other, one]).take([3, 0, 1, 2])
    assert rows["data"].null_count == 4

    messages = with_data(rows, tmp_path)

    assert messages.schema.equals(MESSAGE_SCHEMA)
    assert messages["data"].to_pylist() == [b"x" * 300_000, b"other", b"\x00\xff", b""]
    assert messages["ack_id"].to_pylist() == ["lease 0", "lease 0", "lease 0", "lease 1"]


def test_much_data_is_in_pieces_for_which_no_new_memory_is_asked(tmp_path: Path) -> None:
    data = [bytes([number]) * (9 << 20) for number in range(5)]

    chunked = with_data(kept(tmp_path, tuple(data)), tmp_path)["data"]

    assert chunked.to_pylist() == data
    assert [len(chunk) for chunk in chunked.chunks] == [1, 2, 2]
    assert max(chunk.nbytes for chunk in chunked.chunks) < int(KEEP_MEMORY["MALLOC_MMAP_THRESHOLD_"])


@pytest.mark.parametrize("in_files", [True, False])
def test_source_and_sink_that_do_not_agree_where_data_is_are_an_error(tmp_path: Path, *, in_files: bool) -> None:
    travelling = whole(to_portions(an_answer(b"here"), (0,)))
    rows, directory = (kept(tmp_path, (b"here",)), None) if in_files else (travelling, tmp_path)

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
def test_data_that_travels_comes_as_it_was(data: list[bytes]) -> None:
    messages = with_data(whole(to_portions(an_answer(*data), (0,))), None)
    assert messages.schema.equals(MESSAGE_SCHEMA)
    assert messages["data"].to_pylist() == data


def test_data_that_travels_is_compressed() -> None:
    assert to_portions(an_answer(*[b"long" * 10_000] * 9), (0,)).nbytes < 9 * 4_000


@given(st.data(), st.lists(st.binary(max_size=2_000), min_size=2, max_size=9))
def test_a_portion_that_is_damaged_on_the_way_is_counted_and_the_others_come(
    drawn: st.DataObject, data: list[bytes]
) -> None:
    damaged = drawn.draw(st.integers(0, len(data) - 1))
    portions = [to_portions(an_answer(each), (0,)) for each in data]
    (row,) = portions[damaged].to_pylist()
    at, bit = drawn.draw(st.integers(0, len(row["messages"]) - 1)), drawn.draw(st.integers(0, 7))
    bytes_of = bytearray(row["messages"])
    bytes_of[at] ^= 1 << bit
    portions[damaged] = pa.RecordBatch.from_pylist([row | {"messages": bytes(bytes_of)}], PORTION_SCHEMA)

    messages, count = unpack(portions)

    assert count == 1
    assert messages["data"].to_pylist() == data[:damaged] + data[damaged + 1 :]


def test_a_portion_that_cannot_be_unpacked_is_counted_too() -> None:
    packed = b"no stream of Arrow"
    row = {"task": 0, "checksum": crc32(packed), "messages": packed}
    messages, count = unpack([pa.RecordBatch.from_pylist([row], PORTION_SCHEMA), to_portions(an_answer(b"a"), (0,))])
    assert (count, messages["data"].to_pylist()) == (1, [b"a"])


@given(st.lists(st.text(max_size=3)), st.integers(1, 5))
def test_messages_of_a_key_are_in_one_portion_and_for_the_same_task_each_time(keys: list[str], tasks: int) -> None:
    numbers = numbers_for(tasks)
    portions = to_portions(an_answer(*[b""] * len(keys), keys=keys), numbers)
    again = to_portions(an_answer(*[b""] * len(keys), keys=keys[::-1]), numbers)

    task_of = _tasks_of_keys(portions)
    assert task_of.keys() == set(keys)
    assert task_of == _tasks_of_keys(again)
    assert set(task_of.values()) <= set(numbers)
    assert sum(len(whole(portions.slice(row, 1))) for row in range(len(portions))) == len(keys)


@pytest.mark.parametrize("tasks", [2, 4, 8, 16])
@pytest.mark.parametrize("key", ["{}/{}", "{}/snapshot-{}"])
def test_each_task_gets_as_many_buckets_of_a_table_as_any_other(key: str, tasks: int) -> None:
    for table in ("orders", "orders/2", "5"):
        keys = [key.format(table, bucket) for bucket in range(16)]
        portions = to_portions(an_answer(*[b""] * 16, keys=keys), numbers_for(tasks))
        assert set(Counter(_tasks_of_keys(portions).values()).values()) == {16 // tasks}


def test_keys_of_other_publishers_go_to_all_tasks_whatever_numbers_are_in_them() -> None:
    keys = [f"tenant-{10 * number}" for number in range(100)]
    portions = to_portions(an_answer(*[b""] * 100, keys=keys), numbers_for(10))
    assert len({*_tasks_of_keys(portions).values()}) == 10


def _tasks_of_keys(portions: pa.RecordBatch) -> dict[str, int]:
    found: dict[str, int] = {}
    for row, task in enumerate(portions["task"].to_pylist()):
        for key in set(whole(portions.slice(row, 1))["ordering_key"].to_pylist()):
            assert key not in found
            found[key] = task
    return found


@pytest.mark.parametrize("tasks", [1, 2, 3, 8, 100])
def test_each_task_of_the_sink_has_a_number_that_spark_sends_to_it(tasks: int) -> None:
    assert [partition_of(number, tasks) for number in numbers_for(tasks)] == list(range(tasks))


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
    messages = with_data(pa.concat_tables(second), tmp_path)

    assert messages["data"].to_pylist() == [b"short", b"er", b"x" * 300_000, b"third"]
    assert inodes < {path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 4


def test_the_process_that_commits_imports_nothing_of_arrow() -> None:
    modules = "services.cdc_consumer.wiring.bigquery_cdc, services.cdc_consumer.adapters.stream.reports"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print({{'pyarrow', 'numpy'}} & sys.modules.keys())"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert found.stdout == "set()\n", "10 MB, for as long as the consumer runs"
