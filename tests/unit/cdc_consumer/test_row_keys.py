"""Keys in buckets: the same key in the same bucket however many others there are, in bounded memory."""

import tracemalloc

import pyarrow as pa

from services.cdc_consumer.core.reconcile.row_keys import buckets_of, wire_keys
from services.cdc_consumer.core.types.types import DATE, ENUM, INT64, STRING


def test_a_key_is_in_one_bucket_wherever_it_stands() -> None:
    texts = ["", "x" * 3_000_000, "y", *["a" * (n % 300) + str(n) for n in range(20_000)], "z" * 1_100_000, "", "q"]
    together = buckets_of(pa.array(texts, pa.large_string()), 64)

    alone = [int(buckets_of(pa.array([text], pa.large_string()), 64)[0]) for text in [*texts[:500], *texts[-5:]]]
    assert [*together[:500], *together[-5:]] == alone
    assert len(set(together.tolist())) == 64
    assert len(buckets_of(pa.array([], pa.large_string()), 64)) == 0


def test_memory_is_bounded_whatever_all_keys_together_take() -> None:
    texts = pa.array([f"{n:0168d}" for n in range(100_000)], pa.large_string())
    tracemalloc.start()
    buckets_of(texts, 64)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 4 * texts.nbytes


def test_a_key_is_written_as_its_source_writes_it() -> None:
    kinds = {"number": INT64, "colour": ENUM, "day": DATE, "name": STRING}
    rows = pa.table({"number": [5], "colour": [7], "day": [20_000], "name": ["a"]})

    assert wire_keys(rows, kinds) == [("5", "7", "2024-10-04", "a")]
