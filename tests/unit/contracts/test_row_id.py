"""Row ids: golden vectors, for what is published today must name the same row for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import bucket_of, canonical_key, ordering_key

GOLDEN = [
    # table, (type, value) of each key column, canonical bytes, crc32 (as gzip computes it) % 16
    ("Singers", [("INT64", "1")], b"Singers\x00[1]", 10),
    ("Singers", [("INT64", 1)], b"Singers\x00[1]", 10),
    ("Singers", [("STRING", "1")], b'Singers\x00["1"]', 2),
    ("Singers", [("INT64", "-9223372036854775808")], b"Singers\x00[-9223372036854775808]", 6),
    ("Albums", [("INT64", "1"), ("INT64", "2")], b"Albums\x00[1,2]", 6),
    ("Albums", [("INT64", "12")], b"Albums\x00[12]", 13),
    ("s.t", [("STRING", 'é"\\\n')], 's.t\x00["é\\"\\\\\\n"]'.encode(), 9),
    ("t", [("BOOL", True), ("DATE", "2024-02-29")], b't\x00[true,"2024-02-29"]', 11),
    ("t", [("NUMERIC", "1.10")], b't\x00["1.1"]', 2),
    ("t", [("NUMERIC", "-0.000")], b't\x00["0"]', 0),
    ("t", [("TIMESTAMP", "2024-01-02T03:04:05.120Z")], b't\x00["2024-01-02T03:04:05.12Z"]', 15),
    ("t", [("TIMESTAMP", "2024-01-02T04:04:05.12+01:00")], b't\x00["2024-01-02T03:04:05.12Z"]', 15),
    ("t", [("BYTES", "AP9hYmM=")], b't\x00["AP9hYmM="]', 8),
    ("t", [("PROTO", "CAU=")], b't\x00["CAU="]', 0),
    ("t", [("ENUM", "-1")], b"t\x00[-1]", 15),
    ("t", [("FLOAT64", -0.0)], b"t\x00[0.0]", 13),
    ("t", [("FLOAT64", "NaN")], b't\x00["NaN"]', 10),
    ("t", [("FLOAT32", 1.1)], b"t\x00[1.100000023841858]", 3),
    ("t", [("FLOAT32", 1.100000023841858)], b"t\x00[1.100000023841858]", 3),
    ("t", [("FLOAT32", -1e-46)], b"t\x00[0.0]", 13),
    ("t", [("FLOAT32", "-Infinity")], b't\x00["-Infinity"]', 0),
    ("t", [("STRING", None)], b"t\x00[null]", 3),
]


@pytest.mark.parametrize(("table", "values", "canonical", "bucket"), GOLDEN)
def test_golden_vectors(table: str, values: list[tuple[str, object]], canonical: bytes, bucket: int) -> None:
    types = [(f"k{i}", googlesql) for i, (googlesql, _) in enumerate(values)]
    key = {f"k{i}": value for i, (_, value) in enumerate(values)}

    assert canonical_key(table, types, key) == canonical
    assert bucket_of(canonical, 16) == bucket
    assert ordering_key(table, bucket) == f"{table}/{bucket}"


def test_key_values_stand_in_key_order_whatever_the_order_of_the_object() -> None:
    types = [("b", "INT64"), ("a", "INT64")]

    assert canonical_key("t", types, {"a": "1", "b": "2"}) == canonical_key("t", types, {"b": "2", "a": "1"})
    assert canonical_key("t", types, {"a": "1", "b": "2"}) == b"t\x00[2,1]"


@given(st.text(), st.text(), st.text(), st.text())
def test_two_keys_share_their_bytes_only_if_they_are_the_same_key(a: str, b: str, c: str, d: str) -> None:
    types = [("x", "STRING"), ("y", "STRING")]
    left, right = ({"x": a, "y": b}, {"x": c, "y": d})

    assert (canonical_key("t", types, left) == canonical_key("t", types, right)) == (left == right)


@pytest.mark.parametrize(
    ("googlesql", "value"),
    [
        *[("INT64", value) for value in ("1.5", True, "9223372036854775808", "0x10")],
        *[("BOOL", "true"), ("NUMERIC", "NaN"), ("NUMERIC", "x"), ("TIMESTAMP", "yesterday"), ("DATE", "2024-1-1")],
        *[("NUMERIC", "1e999999999"), ("NUMERIC", "1_0"), ("NUMERIC", "١"), ("FLOAT64", 10**400), ("FLOAT64", "1_0")],
        *[("FLOAT32", 1e39), ("FLOAT32", True)],
        *[("STRING", 1), ("BYTES", "%%%"), ("BYTES", "A"), ("PROTO", "A"), ("ENUM", "ON")],
    ],
)
def test_a_value_that_is_not_of_its_type_is_poison_and_is_not_quoted(googlesql: str, value: object) -> None:
    with pytest.raises(PoisonRecordError, match="key column k") as caught:
        canonical_key("t", [("k", googlesql)], {"k": value})

    assert caught.value.reason is Reason.VALUE_DOES_NOT_FIT
    assert (
        str(value) not in caught.value.detail.replace("TypeError", "").replace("ValueError", "") or len(str(value)) < 2
    )


def test_a_missing_key_column_is_poison() -> None:
    with pytest.raises(PoisonRecordError, match="key column k is missing"):
        canonical_key("t", [("k", "INT64")], {})
