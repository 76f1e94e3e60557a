"""What the Spanner reader's command ``rows`` answers of the emulator's rows, of every type and in both dialects."""

from collections.abc import Callable
from datetime import date

import grpc
import pytest

from deploy.local.platform.source import Row, SpannerDatabase, Write
from deploy.local.proof.comparison import compare_tables
from services.cdc_consumer.adapters.source_rows import SourceProcess, opened_source
from shared.contracts.change_batch import decode_batch
from shared.contracts.errors import MisconfiguredError
from shared.contracts.source_rows import Done, Key
from shared.contracts.timestamps import format_timestamp
from shared.runtime.stop import Stop
from tests.integration.pubsub_topics import a_topology, pull
from tests.worlds.spanner_rows import environment
from tests.worlds.type_map import EVERYTHING, KINDS, POSTGRESQL, SCHEMA, Target

pytestmark = pytest.mark.integration

COMMAND = "python -m services.spanner_reader rows"


def read(source: SourceProcess, table: str, at: str | None = None) -> list[bytes]:
    """Return the batches of a table's rows."""
    *batches, done = source.read(table, at)
    found = [batch for batch in batches if isinstance(batch, bytes)]
    assert isinstance(done, Done)
    assert done.rows == sum(len(decode_batch(batch)) for batch in found)
    return found


def test_rows_of_every_type_come_as_the_stream_writes_them(
    database: Callable[..., SpannerDatabase], target: Target, pubsub_emulator: str, channel: grpc.Channel
) -> None:
    source, topology = database(*SCHEMA), a_topology(channel)
    numbers: list[Row] = [
        {"F": 1e300, "G": 1.1, "D": date(1, 1, 1), "V": b"x"},
        {"F": -0.0, "G": 0.5, "D": date(1970, 1, 1), "V": None},
    ]
    source.commit([Write("insert", "Arrays", EVERYTHING), Write("insert", "Arrays", {"Id": 2})])
    source.commit([Write("insert", "ByNumbers", row) for row in numbers])
    before = source.commit([Write("insert", "ByBytes", {"Id": bytes([n, 255]), "Name": f"n{n}"}) for n in range(4)])
    source.commit([Write("delete", "ByBytes", {"Id": b"\x01\xff"})])
    tables = ["Arrays", "ByBytes", "ByNumbers"]

    settings = environment(source, "Everything", topology, pubsub_emulator)
    with opened_source(COMMAND, settings, Stop()) as rows:
        listed = rows.listed()
        assert (set(listed.names), listed.retention) == ({*tables, "ByNull"}, 86_400)
        messages = [batch for table in tables for batch in read(rows, table)]
        assert sum(len(decode_batch(batch)) for batch in read(rows, "ByBytes", format_timestamp(before))) == 4
        keys: list[Key] = [("Av8=",), ("Af8=",), ("AAA=",)]
        by_key, done = rows.read_keys("ByBytes", keys)
        assert [bytes(key) for batch in by_key for key in decode_batch(batch).keys] == [b'{"Id":"Av8="}']
        assert (done.rows, done.absent) == (1, 2)
        published = rows.publish("ByBytes", keys)
        assert (published.rows, published.absent) == (1, 2)
        with pytest.raises(MisconfiguredError, match="Nothing is not among"):
            rows.describe("Nothing")

    assert not target.apply(*messages)
    assert [named for one in compare_tables(source, target.dataset, tables) for named in one.named] == []
    batches = [decode_batch(one.message.data) for one in pull(channel, topology.subscription)]
    assert {(bytes(k), op, s) for one in batches for k, op, s in zip(one.keys, one.op, one.sequence, strict=True)} == {
        (b'{"Id":"Av8="}', "UPSERT", published.sequence),
        (b'{"Id":"Af8="}', "DELETE", published.sequence),
        (b'{"Id":"AAA="}', "DELETE", published.sequence),
    }
    assert {one.header.origin for one in batches} == {"snapshot"}


def test_rows_of_a_database_of_the_postgresql_dialect_come_as_the_stream_writes_them(
    database: Callable[..., SpannerDatabase], target: Target, pubsub_emulator: str, channel: grpc.Channel
) -> None:
    source, topology = database(*POSTGRESQL, postgresql=True), a_topology(channel)
    source.commit([Write("insert", "kinds", KINDS), Write("insert", "kinds", {"id": 2, "n": "NaN"})])
    source.commit([Write("insert", "ByParts", {"F": n / 4, "Id": bytes([n]), "v": "x"}) for n in range(3)])
    source.commit([Write("insert", "shop.orders", {"id": 1, "v": "x"})])

    with opened_source(COMMAND, environment(source, "parts", topology, pubsub_emulator), Stop()) as rows:
        messages = [batch for table in ("kinds", "ByParts", "shop.orders") for batch in read(rows, table)]
        by_key, done = rows.read_keys("ByParts", [(0.25, "AQ=="), (0.25, "AA==")])

    assert [bytes(key) for batch in by_key for key in decode_batch(batch).keys] == [b'{"F":0.25,"Id":"AQ=="}']
    assert (done.rows, done.absent) == (1, 1)
    assert not target.apply(*messages)
    assert [each.named for each in compare_tables(source, target.dataset, ["ByParts"])] == [[]]
    (kinds,) = compare_tables(source, target.dataset, ["kinds"])
    assert [what.partition(": ")[2].partition(" (")[0] for what in kinds.named] == [
        "column next is not in BigQuery"  # what Spanner generates is not in a change stream
    ] * 2
    assert len(target.dataset.rows("shop_orders") or ()) == 1
