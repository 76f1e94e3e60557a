"""The merge against a model that applies one change after the other, whatever is merged together."""

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulators.bigquery.catalog import Table, TableName
from emulators.bigquery.column_types import Column, column_type
from emulators.bigquery.rows import DELETED, Rows
from emulators.bigquery.storage import TOMBSTONE_MICROSECONDS, Storage, view
from emulators.bigquery.writer_schema import SEQUENCE_NUMBER
from tests.seeds import examples
from tests.unit.emulators.bigquery.warehouses import Clock

TABLE = Table(
    TableName("p", "d", "t"),
    (Column("k", column_type("INT64")), Column("v", column_type("INT64"))),
    primary_key=("k",),
    number=1,
)

Change = tuple[int, int, bool]  # key, sequence, whether it is a DELETE


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(clock: Clock) -> Iterator[Storage]:
    storage = Storage(clock.now)
    storage.create(TABLE)
    yield storage
    storage.close()


def rows(changes: Sequence[Change], first_value: int) -> Rows:
    columns = {
        "k": pa.array([key for key, _, _ in changes], pa.int64()),
        "v": pa.array(range(first_value, first_value + len(changes)), pa.int64()),
        SEQUENCE_NUMBER: pa.array([f"{sequence:064X}" for _, sequence, _ in changes], pa.string()),
        DELETED: pa.array([deleted for _, _, deleted in changes], pa.bool_()),
    }
    return Rows(pa.table(columns), changes=True)


def read(storage: Storage) -> dict[int, int]:
    result = storage.query(f"SELECT k, v FROM {view(TABLE)}", [TABLE], {}).to_pylist()
    found = {row["k"]: row["v"] for row in result}
    assert len(found) == len(result), "a key stands twice"
    return found


a_change = st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans())
a_step = st.tuples(st.lists(a_change, min_size=1, max_size=6), st.booleans(), st.sampled_from([0, 1, 2]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50), deadline=None)
@given(st.lists(a_step, max_size=6))
def test_any_history_ends_as_change_after_change_would(
    storage: Storage, clock: Clock, steps: list[tuple[list[Change], bool, int]]
) -> None:
    storage.drop(TABLE)
    storage.create(TABLE)
    model: dict[int, tuple[int, int | None, int]] = {}  # key -> sequence, value (None: deleted), when
    value = 0
    for changes, reads, days in steps:
        clock.micros += days * TOMBSTONE_MICROSECONDS // 2
        storage.accept(TABLE, rows(changes, value))
        for key, sequence, deleted in changes:
            known = model.get(key)
            if known is not None and known[1] is None and known[2] <= clock.micros - TOMBSTONE_MICROSECONDS:
                known = None  # forgotten
            if known is None or sequence >= known[0]:
                model[key] = (sequence, None if deleted else value, clock.micros)
            value += 1
        if reads:
            assert read(storage) == {key: kept[1] for key, kept in model.items() if kept[1] is not None}
    assert read(storage) == {key: kept[1] for key, kept in model.items() if kept[1] is not None}


def test_a_reader_beside_writers_sees_whole_requests_and_never_fewer_than_before(storage: Storage) -> None:
    requests, size = 40, 50
    done = threading.Event()

    def write(start: int) -> None:
        for request in range(requests):
            first = start + request * size
            storage.accept(TABLE, rows([(key, 1, False) for key in range(first, first + size)], 0))

    def merge() -> None:
        while not done.is_set():
            storage.merge(TABLE)

    threads = [threading.Thread(target=write, args=(number * requests * size,)) for number in range(3)]
    merging = threading.Thread(target=merge)
    for thread in (*threads, merging):
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        count = len(read(storage))
        assert count >= seen
        assert count % size == 0
        seen = count
    done.set()
    for thread in (*threads, merging):
        thread.join()

    assert len(read(storage)) == 3 * requests * size


def test_rows_accepted_before_a_column_was_added_are_kept(storage: Storage, clock: Clock) -> None:
    storage.accept(TABLE, rows([(1, 1, False)], 7))
    wider = TABLE.changed(clock.now(), columns=(*TABLE.columns, Column("w", column_type("STRING"))))
    storage.alter(TABLE, wider)
    storage.accept(wider, rows([(2, 1, False)], 8))  # a writer that still has the old columns

    assert storage.query(f"SELECT * FROM {view(wider)} ORDER BY k", [wider], {}).to_pylist() == [
        {"k": 1, "v": 7, "w": None},
        {"k": 2, "v": 8, "w": None},
    ]
