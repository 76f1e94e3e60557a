"""The type map to its end: what a source writes is what a query of the mirror returns, whatever the type.

Once with anything that a source could write, as change batches; once with what the Spanner emulator really sends.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.local.platform.source import Row, SpannerDatabase, Value, Write
from deploy.local.proof.comparison import compare_tables
from services.cdc_consumer.adapters.reconcile.mirror_tables import BigQueryMirrorTables
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.core.reconcile.comparing import compare
from services.cdc_consumer.core.reconcile.source_table import mirrored, source_rows
from shared.contracts.change_batch import Header, decode_batch
from shared.contracts.reasons import Reason
from shared.runtime.stop import Stop
from tests.integration.pubsub_topics import a_topology
from tests.integration.stand_in import PROJECT
from tests.seeds import examples
from tests.source_values import COLUMNS, EPOCH, VALUES, Written
from tests.unit.cdc_consumer.wire import batch_of, header_of, upsert
from tests.worlds.spanner_reading import read_all
from tests.worlds.spanner_rows import environment
from tests.worlds.type_map import (
    EVERYTHING,
    KINDS,
    POSTGRESQL,
    PROTO_TYPED,
    SCHEMA,
    Target,
    protos,
)

pytestmark = pytest.mark.integration


def queried(googlesql: str, value: Any) -> Any:
    """Return what the official client makes of a value that arrived."""
    if googlesql.startswith("ARRAY<"):
        return [queried(googlesql[len("ARRAY<") : -1], element) for element in value or ()]
    match googlesql:
        case _ if value is None:
            return None
        case "DATE":
            return EPOCH + timedelta(days=value)
        case "TIMESTAMP":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        case "NUMERIC":
            return Decimal(value)
        case "JSON" | "PG_JSONB":
            return json.loads(value)
        case _:
            return value


def distinct(value: Any) -> Any:
    """Return a value so that only what is the same equals it: NaN itself, and -0.0 not 0.0, nor 1 True."""
    match value:
        case list():
            return [distinct(each) for each in value]
        case float():
            return repr(value)
        case _:
            return type(value), value


rows_written = st.fixed_dictionaries(
    {}, optional={name: st.one_of(st.just(Written(None, None)), values, values) for name, values in VALUES.items()}
)
ids = iter(range(1_000_000_000))


@settings(
    deadline=None,
    max_examples=examples(75),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(rows_written, min_size=1, max_size=12))
def test_a_query_of_the_mirror_returns_what_the_source_wrote(
    target: Target, rows: Sequence[Mapping[str, Written]]
) -> None:
    """And `reconcile`, which reads the same rows of both, finds them equal, as the type map defines *equal*."""
    header = header_of({"id": "INT64"} | COLUMNS, table="written")
    by_id = {next(ids): row for row in rows}
    texts = {key: json.dumps({name: value.json for name, value in row.items()}) for key, row in by_id.items()}
    batch = batch_of([upsert(key, text) for key, text in texts.items()], header)

    assert not target.apply(batch)

    table, mirrors = mirrored(batch), BigQueryMirrorTables(target.stand_in.client, PROJECT, target.stand_in.dataset)
    source, unfit = source_rows(table, [batch])
    in_bigquery, _progress = mirrors.recheck(table, mirrors.find(table), source.select(["id"]), "")
    compared = compare(table.definition, table.columns, source, in_bigquery)
    assert (list(unfit), compared.matched, list(compared.kinds)) == ([], len(by_id), [])
    found = target.dataset.query(f"SELECT * FROM written WHERE id BETWEEN {min(by_id)} AND {max(by_id)}")
    assert {row["id"] for row in found} == set(by_id)
    for row in found:
        given_row = by_id[row["id"]]
        for name, googlesql in COLUMNS.items():
            arrives = given_row[name].arrives if name in given_row else None
            assert (name, distinct(row[name])) == (name, distinct(queried(googlesql, arrives)))


def test_a_number_of_a_jsonb_is_read_exactly_from_bigquery_however_many_digits_it_has(target: Target) -> None:
    """By `JSON_VALUE`, which returns a number and a text alike: as the documents say."""
    header = header_of({"id": "INT64", "doc": "PG_JSONB"}, table="exact")
    prices = ["12345678901234567890123456.789", "1.5", "-18446744073709551617", "7"]
    batch = batch_of([upsert(n, {"doc": f'{{"price": {price}}}'}) for n, price in enumerate(prices)], header)

    assert [each.reason for each in target.apply(batch)] == [Reason.VALUE_DOES_NOT_FIT] * 2
    assert not target.apply(batch, tables_file='[defaults]\njsonb_numbers = "text"')

    found = target.dataset.query("SELECT JSON_VALUE(doc, '$.price') AS price FROM exact ORDER BY id")
    assert [row["price"] for row in found] == prices


def test_a_nul_in_text_arrives_wherever_text_can_be(target: Target) -> None:
    """U+0000 is a character like any other to Spanner, on the wire and to BigQuery's STRING: two keys differ by it."""
    header = header_of({"id": "STRING", "s": "STRING", "a": "ARRAY<STRING>", "j": "JSON"}, table="nuls")
    text = json.dumps({"s": "a\0b", "a": ["\0", "", "b\0"], "j": json.dumps({"k\0": "\0v"})})
    keys = ["", "\0", "a", "a\0", "a\0b"]

    assert not target.apply(batch_of([upsert(json.dumps({"id": key}), text) for key in keys], header))

    found = target.dataset.query("SELECT * FROM nuls ORDER BY id")
    assert [row["id"] for row in found] == keys
    for row in found:
        assert (row["s"], row["a"], row["j"]) == ("a\0b", ["\0", "", "b\0"], {"k\0": "\0v"})


def test_rows_with_arrays_of_every_type_and_keys_of_every_kind_arrive_from_spanner(
    database: Callable[..., SpannerDatabase], target: Target
) -> None:
    source = database(*SCHEMA)
    start = source.now()
    empty: dict[str, Value] = {name: () for name in EVERYTHING if name.startswith("a_")}
    keys: list[Row] = [
        {"F": 1e300, "G": 1.1, "D": date(1, 1, 1), "V": b"x"},
        {"F": -0.0, "G": 0.5, "D": date(1970, 1, 1), "V": None},
        {"F": 0.5, "G": 0.5, "D": date(1970, 1, 1)},
    ]
    source.commit([Write("insert", "Arrays", EVERYTHING), Write("insert", "Arrays", {"Id": 2})])
    source.commit([Write("insert", "Arrays", {"Id": number, **empty}) for number in (3, 4)])
    source.commit([Write("insert", "ByNumbers", row) for row in keys])
    source.commit([Write("insert", "ByBytes", {"Id": bytes([n, 255]), "Name": f"n{n}"}) for n in range(4)])
    source.commit([Write("update", "Arrays", {"Id": 2, "a_string": ("now",)}), Write("delete", "Arrays", {"Id": 4})])
    source.commit([Write("delete", "ByBytes", {"Id": b"\x01\xff"}), Write("delete", "ByNumbers", keys[2])])
    source.commit([Write("update", "ByBytes", {"Id": b"\x02\xff", "Name": "again"})])

    assert not target.apply(*read_all(source, "Everything", start, source))

    tables = ["Arrays", "ByBytes", "ByNumbers"]
    assert [named for one in compare_tables(source, target.dataset, tables) for named in one.named] == []
    assert [len(target.dataset.rows(table) or ()) for table in tables] == [3, 3, 2]
    texts = target.dataset.query("SELECT FROM_BASE64(Id) AS id FROM ByBytes ORDER BY Id")
    assert [row["id"] for row in texts] == [b"\x00\xff", b"\x02\xff", b"\x03\xff"]


def test_protos_and_enums_arrive_and_columns_are_followed_to_every_type_that_spanner_lets_them_have(
    database: Callable[..., SpannerDatabase], target: Target, channel: grpc.Channel, pubsub_emulator: str
) -> None:
    """The emulator's records call a PROTO and an ENUM by their names and have NULL in them; its rows have the values.

    So its types are none that are known, and their columns are text. Spanner itself calls them PROTO and ENUM.
    """
    source = database(*PROTO_TYPED, protos=protos())
    settings = environment(source, "Everything", a_topology(channel), pubsub_emulator)

    def all_rows() -> list[bytes]:
        return [each for each in rows.read("Typed") if isinstance(each, bytes)]

    def apply(*batches: bytes) -> None:
        path = f"//spanner.googleapis.com/{source.path}/changeStreams/Everything"
        ours = f'"source":"{source.path}"'.encode()
        assert not target.apply(*(each.replace(ours, f'"source":"{path}"'.encode()) for each in batches))

    def found(*names: str) -> list[tuple[object, ...]]:
        columns = ", ".join(names)
        return [
            tuple(row[name] for name in names)
            for row in target.dataset.query(f"SELECT {columns} FROM Typed ORDER BY Id")
        ]

    with opened_source("python -m services.spanner_reader rows", settings, Stop()) as rows:
        start = source.now()
        source.commit([Write("insert", "Typed", {"Id": 1, "U": b"\x08\x05", "S": 1, "Us": (), "N": "abc"})])
        apply(*read_all(source, "Everything", start, database()))
        assert found("Id", "U", "S", "N") == [(1, None, None, "abc")]
        apply(*all_rows())
        assert found("U", "S", "Us", "N") == [("CAU=", "1", [], "abc")]

        source.alter(
            "ALTER TABLE Typed ALTER COLUMN U BYTES(MAX)",
            "ALTER TABLE Typed ALTER COLUMN S INT64",
            "ALTER TABLE Typed ALTER COLUMN Us ARRAY<BYTES(MAX)>",
            "ALTER TABLE Typed ALTER COLUMN N BYTES(MAX)",
        )
        altered = source.now()
        source.commit([Write("insert", "Typed", {"Id": 2, "U": b"\xff", "S": 7, "Us": (b"x",), "N": b"\xff"})])
        apply(*read_all(source, "Everything", altered, database()))
        apply(*all_rows())
        names = ("U_BYTES", "S_INT64", "Us_ARRAY_BYTES", "N_BYTES")
        assert found(*names) == [(b"\x08\x05", 1, [], b"abc"), (b"\xff", 7, [b"x"], b"\xff")]

        target.dataset.query("DROP TABLE Typed")
        target.tables.forget("Typed")
        apply(*all_rows())
        assert [named for one in compare_tables(source, target.dataset, ["Typed"]) for named in one.named] == []


def test_a_key_with_null_is_refused_and_named_and_its_neighbours_arrive(
    database: Callable[..., SpannerDatabase], target: Target
) -> None:
    source = database(*SCHEMA)
    start = source.now()
    parts: list[Row] = [{"A": 1, "B": "b"}, {"A": None, "B": "b"}, {"A": 2, "B": None}, {"A": None, "B": None}]
    source.commit([Write("insert", "ByNull", {**row, "V": "v"}) for row in parts])
    source.commit([Write("delete", "ByNull", parts[1])])

    poison = target.apply(*read_all(source, "Everything", start, source))

    assert sorted((each.key, each.reason.value) for each in poison) == [
        ("[2,null]", "key_not_representable"),
        ('[null,"b"]', "key_not_representable"),
        ('[null,"b"]', "key_not_representable"),
        ("[null,null]", "key_not_representable"),
    ]
    assert [(row["A"], row["B"]) for row in target.dataset.rows("ByNull") or ()] == [(1, "b")]


@pytest.mark.parametrize(
    ("stream", "partitions_in_postgresql"), [("parts", True), ("Everything", True), ("parts", False)]
)
def test_a_database_of_the_postgresql_dialect_arrives_whatever_the_dialect_of_the_partition_table(
    database: Callable[..., SpannerDatabase], target: Target, stream: str, partitions_in_postgresql: bool
) -> None:
    source = database(*POSTGRESQL, postgresql=True)
    start = source.now()
    source.commit([Write("insert", "kinds", KINDS), Write("insert", "kinds", {"id": 2, "n": "NaN"})])
    source.commit([Write("insert", "ByParts", {"F": n / 4, "Id": bytes([n]), "v": "x"}) for n in range(3)])
    source.commit([Write("insert", "shop.orders", {"id": 1, "v": "x"}), Write("insert", "kinds", {"id": 3, "ai": ()})])
    source.commit([Write("update", "kinds", {"id": 2, "n": "1.50", "ai": (5,)}), Write("delete", "kinds", {"id": 3})])
    source.commit([Write("delete", "ByParts", {"F": 0.25, "Id": b"\x01"})])
    source.commit([Write("update", "ByParts", {"F": 0.5, "Id": b"\x02", "v": "again"})])
    source.commit([Write("insert", "stamps", {"id": 1, "at": "spanner.commit_timestamp()", "o": "x", "p": 0.5})])

    # Never beside a stream that watches everything.
    partitions = (
        source if stream == "parts" and partitions_in_postgresql else database(postgresql=partitions_in_postgresql)
    )
    messages = read_all(source, stream, start, partitions)
    assert not target.apply(*messages)

    # What is announced of a table from the schema is what its records say.
    headers: dict[str, set[Header]] = {}
    for header in (decode_batch(message).header for message in messages):
        headers.setdefault(header.table, set()).add(header)
    assert {table: len(found) for table, found in headers.items()} == {
        "kinds": 1, "ByParts": 1, "shop.orders": 1, "stamps": 1,
    }  # fmt: skip

    assert [each.named for each in compare_tables(source, target.dataset, ["ByParts"])] == [[]]
    (kinds,) = compare_tables(source, target.dataset, ["kinds"])
    # What Spanner generates is not in a change stream.
    assert [what.partition(": ")[2].partition(" (")[0] for what in kinds.named] == [
        "column next is not in BigQuery"
    ] * 2
    assert [len(target.dataset.rows(table) or ()) for table in ("kinds", "ByParts", "shop_orders")] == [2, 2, 1]
    kinds_made = target.stand_in.client.get_table(f"{PROJECT}.{target.stand_in.dataset}.kinds")
    made = {field.name: (field.field_type, field.mode) for field in kinds_made.schema}
    assert [made[name] for name in ("n", "an", "g", "j")] == [
        ("STRING", "NULLABLE"), ("STRING", "REPEATED"), ("FLOAT", "NULLABLE"), ("JSON", "NULLABLE"),
    ]  # fmt: skip
    name = '"Partitions"' if partitions_in_postgresql else "Partitions"
    states = partitions.query(f"SELECT DISTINCT state FROM {name}")
    assert {row["state"] for row in states} <= {"RUNNING", "FINISHED"}


def test_names_of_every_kind_that_bigquery_takes_arrive(target: Target) -> None:
    """Named by its source: 300 characters, words of SQL, of Python, of protobuf and of the wire; in a named schema."""
    names = ["x" * 300, "from", "Order", "_", "class", "DESCRIPTOR", "Clear", "message", "k", "a_b", "aB", "_change"]
    columns = {"group": "INT64", "Select": "BYTES"} | dict.fromkeys(names, "ARRAY<STRING>")
    for table in ("shop.Order", "shop.order", "table"):
        header = header_of(columns, key=("group", "Select"), table=table)
        row = json.dumps({name: [name, table] for name in names})
        assert not target.apply(batch_of([upsert('{"group":"1","Select":"YQ=="}', row)], header))

        (found,) = target.dataset.query(f"SELECT * FROM `{table.replace('.', '_')}`")
        assert (found["group"], found["Select"]) == (1, "YQ==")
        assert {name: found[name] for name in names} == {name: [name, table] for name in names}


@pytest.mark.parametrize(
    "name", ["x" * 301, "_PARTITIONDATE", "_change_type_", "__root__", "_millrace_key", "GROUP", "ä"]
)
def test_a_name_that_bigquery_does_not_take_is_refused_before_anything_is_made(target: Target, name: str) -> None:
    header = header_of({"group": "INT64", name: "STRING"}, key=("group",), table="never")
    (poison,) = target.apply(batch_of([upsert({"group": "1"})], header))

    assert poison.reason is Reason.BAD_NAME
    assert target.dataset.rows("never") is None


NAMED = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.Orders (Id INT64 NOT NULL, Tags ARRAY<STRING(9)>) PRIMARY KEY (Id)",
    "CREATE TABLE Orders (Id INT64 NOT NULL, Name STRING(9)) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM Named FOR shop.Orders, Orders OPTIONS (value_capture_type = 'NEW_ROW')",
)


def test_tables_of_one_name_in_two_schemas_are_two_tables(
    database: Callable[..., SpannerDatabase], target: Target
) -> None:
    source = database(*NAMED)
    start = source.now()
    source.commit([Write("insert", "shop.Orders", {"Id": 1, "Tags": ("a", "b")}), Write("insert", "Orders", {"Id": 2})])

    assert not target.apply(*read_all(source, "Named", start, source))

    assert [(row["Id"], row["Tags"]) for row in target.dataset.rows("shop_Orders") or ()] == [(1, ["a", "b"])]
    assert [(row["Id"], row["Name"]) for row in target.dataset.rows("Orders") or ()] == [(2, None)]
