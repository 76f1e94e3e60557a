"""A changed Spanner row is right in BigQuery: values, order, repetition, and a neighbour that is poison.

Where nothing is done to BigQuery that Spanner knows nothing of, one reader serves one test after the other.
"""

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest

from deploy.local.platform.services import Service
from deploy.local.platform.source import Row, Write
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from tests.e2e.rig import TABLES, Message, Rig

WIDE: Row = {
    "Id": 1,
    "Name": "Zoë \N{GUITAR} \"'\\\n",
    "Born": date(1, 1, 1),
    "Rate": -1.5e-300,
    "Pay": Decimal("-99999999999999999999999999999.999999999"),
    "Photo": bytes(range(256)),
    "Live": True,
    "Seen": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    "Facts": {"a": [1, 2.5, None, {"b": "\N{SNOWMAN}"}], "n": 12345678901234567890},
    "Names": ("", "NaN", "\N{GUITAR}"),
    "Marks": (1.1, -0.0),
}


def singer(key: int, name: str | None) -> Write:
    return Write("insert_or_update", "Singers", {"Id": key, "Name": name})


def album(key: int, number: int, title: str) -> Write:
    return Write("insert_or_update", "Albums", {"Id": key, "AlbumId": number, "Title": title})


def started(rig: Rig) -> Service:
    """Start both services; return the consumer."""
    consumer, reader = rig.consumer(), rig.start_reader()
    rig.wait_until_ready(reader, consumer)
    return consumer


@pytest.fixture(scope="module")
def consumer(lasting_rig: Rig) -> Service:
    return started(lasting_rig)


@pytest.fixture
def emptied(lasting_rig: Rig, consumer: Service) -> Rig:
    """Return the pipeline that runs, with empty tables; what came before is applied and looked at."""
    rig = lasting_rig
    for table, key in (("Singers", "Id"), ("Tags", "Tag")):  # and albums with their singers
        for row in rig.rows(table):
            rig.commit(Write("delete", table, {key: row[key]}))
    rig.wait_until_equal()
    assert [row for table in TABLES for row in rig.rows(table)] == []
    rig.published()
    rig.letters()
    return rig


def test_insert_update_delete_and_insert_again_arrive_right(emptied: Rig) -> None:
    rig = emptied

    # several tables in one transaction, every type, a key alone
    rig.commit(Write("insert", "Singers", WIDE), album(1, 1, "first"), Write("insert", "Tags", {"Tag": "a/b\u0000c"}))
    rig.commit(singer(2, "two"), singer(3, None), singer(4, ""), album(2, 1, "x"), album(2, 2, "y"))
    rig.wait_until_equal()
    assert {row["Id"] for row in rig.rows("Singers")} == {1, 2, 3, 4}

    # the same key in transaction after transaction; REPLACE, which cascades; deletes of parent and child
    for number in range(20):
        rig.commit(singer(2, f"version {number}"), album(2, 1, f"version {number}"))
    rig.commit(Write("replace", "Singers", {"Id": 1, "Live": False}))
    rig.commit(Write("delete", "Singers", {"Id": 3}), Write("delete", "Tags", {"Tag": "a/b\u0000c"}))
    rig.commit(Write("delete", "Albums", {"Id": 2, "AlbumId": 2}))
    rig.wait_until_equal()
    assert {row["Id"] for row in rig.rows("Singers")} == {1, 2, 4}
    assert rig.rows("Tags") == []

    # again what was deleted, and deleted what was there again
    rig.commit(singer(3, "again"), Write("insert", "Tags", {"Tag": "a/b\u0000c"}))
    rig.commit(Write("delete", "Singers", {"Id": 3}))
    rig.commit(singer(3, "for good"), album(3, 1, "z"))
    rig.commit(Write("delete", "Singers", {"Id": 2}))  # and its albums with it
    rig.wait_until_equal()
    assert {(row["Id"], row["Name"]) for row in rig.rows("Singers")} == {(1, None), (3, "for good"), (4, "")}
    assert rig.letters() == []


def test_batches_that_come_again_and_in_any_order_change_nothing(emptied: Rig, consumer: Service) -> None:
    rig = emptied
    consumed = rig.counted(consumer, "millrace_consumer_messages_total")
    rng = random.Random(7)
    for number in range(60):
        key = rng.randrange(8)
        rig.commit(singer(key, f"at {number}") if rng.random() < 0.7 else Write("delete", "Singers", {"Id": key}))
    rig.wait_until_equal()
    before = sorted(rig.rows("Singers"), key=lambda row: int(row["Id"]))
    messages = rig.published()
    changes = sum(len(decode_batch(message.data)) for message in messages)
    assert changes >= 50

    again = [message for message in messages if len(decode_batch(message.data))]
    backwards, shuffled = again[::-1], rng.sample(again * 2, 2 * len(again))
    rig.publish([*backwards, *shuffled])
    all_of_them = len(messages) + len(backwards) + len(shuffled)
    rig.wait(
        lambda: rig.counted(consumer, "millrace_consumer_messages_total") >= consumed + all_of_them,
        "the repeated messages to be consumed",
    )

    assert sorted(rig.rows("Singers"), key=lambda row: int(row["Id"])) == before, "sequences included"
    assert rig.letters() == []


def test_a_poison_change_becomes_a_dead_letter_and_its_neighbours_in_the_message_are_applied(rig: Rig) -> None:
    started(rig)
    rig.commit(*[singer(key, "good") for key in range(1, 4)])
    rig.wait_until_equal()
    batch = next(message for message in rig.published() if f'"table":"{rig.named("Singers")}"'.encode() in message.data)
    header = msgspec.json.decode(batch.data)["header"]
    born = ['"2001-01-01"', '"the day before yesterday"', '"2003-03-03"']
    poisoned = (
        f'{{"header":{msgspec.json.encode(header).decode()},"op":["UPSERT","UPSERT","UPSERT"],'
        '"mod_type":["INSERT","INSERT","INSERT"],"sequence":["A0/0/0/0","A1/0/0/0",'
        '"A2/0/0/0"],"commit_timestamp":["2026-01-01T00:00:00Z","2026-01-01T00:00:00Z",'
        '"2026-01-01T00:00:00Z"],"place":[{},{},{}],"keys":[{"Id":"101"},{"Id":"102"},{"Id":"103"}],'
        f'"rows":[{",".join(f"{{{chr(34)}Born{chr(34)}: {text}}}" for text in born)}],"old":[null,null,null]}}'
    ).encode()
    attributes = {"table": "Singers", "who": "a test"}

    rig.publish([Message(poisoned, attributes, "Singers/0"), Message(b"junk", {"not": "ours"}, "")])

    rig.wait(lambda: {row["Id"] for row in rig.rows("Singers")} >= {101, 103}, "the neighbours to be applied")
    letters = list[DeadLetter]()

    def both() -> bool:
        letters.extend(rig.letters())
        return len(letters) >= 2

    rig.wait(both, "both letters")
    by_reason = {letter.reason: letter for letter in letters}
    junk, change = by_reason[Reason.UNDECODABLE], by_reason[Reason.VALUE_DOES_NOT_FIT]
    assert (junk.data, junk.attributes, junk.ordering_key) == (b"junk", {"not": "ours"}, "")
    assert change.data == decode_batch(poisoned).cut(1), "the change's own bytes, under the same header"
    assert (change.attributes, change.ordering_key) == (attributes, "Singers/0")
    assert (change.table, change.sequence) == (rig.named("Singers"), "A1/0/0/0")
    assert "Born" in change.detail
    assert "yesterday" not in change.detail, "a detail names the column and never a value"
    assert 102 not in {row["Id"] for row in rig.rows("Singers")}


def test_the_tables_have_the_key_the_clustering_and_millraces_columns(emptied: Rig) -> None:
    rig = emptied
    commit_timestamp = rig.commit(Write("insert", "Singers", WIDE), album(1, 1, "first"))
    rig.wait_until_equal()

    table = rig.target._client.get_table(rig.in_bigquery("Albums"))

    constraints = table.table_constraints
    assert constraints is not None
    assert constraints.primary_key is not None
    assert constraints.primary_key.columns == ["Id", "AlbumId"]
    assert table.clustering_fields == ["Id", "AlbumId"]
    (row,) = rig.rows("Albums")
    assert row["_millrace_sequence"].startswith(f"{commit_timestamp // 1000:016X}/")
    assert row["_millrace_commit_timestamp"] == datetime.fromtimestamp(commit_timestamp // 1000 / 1e6, UTC)
