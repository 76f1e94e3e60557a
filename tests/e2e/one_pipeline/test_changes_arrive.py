"""A changed Spanner row is right in BigQuery: values, order, repetition, and a neighbour that is poison.

Where nothing is done to BigQuery that Spanner knows nothing of, one reader serves one test after the other. Another one
goes on where it stopped, without ordering keys: all tests hold as well for its messages.
"""

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from deploy.local.platform.services import Service
from deploy.local.platform.source import Row, Write
from shared.contracts.change_batch import decode_batch
from tests.e2e.rig import TABLES, Rig

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


@pytest.fixture(scope="module", params=["key", "none"])
def ordering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def consumer(lasting_rig: Rig, ordering: str) -> Iterator[Service]:
    """Start a reader, and the consumer where it does not run; return the consumer."""
    consumer, reader = lasting_rig.consumer(), lasting_rig.start_reader(f"reader_{ordering}", ORDERING=ordering)
    lasting_rig.wait_until_ready(reader, consumer)
    yield consumer
    reader.process.end()


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
    rig.dead_letters()
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
    assert rig.dead_letters() == []


def test_batches_that_come_again_and_in_any_order_change_nothing(
    emptied: Rig, consumer: Service, ordering: str
) -> None:
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
    assert {bool(message.ordering_key) for message in messages} == {ordering == "key"}

    again = [message for message in messages if len(decode_batch(message.data))]
    backwards, shuffled = again[::-1], rng.sample(again * 2, 2 * len(again))
    rig.publish([*backwards, *shuffled])
    all_of_them = len(messages) + len(backwards) + len(shuffled)
    rig.wait(
        lambda: rig.counted(consumer, "millrace_consumer_messages_total") >= consumed + all_of_them,
        "the repeated messages to be consumed",
    )

    assert sorted(rig.rows("Singers"), key=lambda row: int(row["Id"])) == before, "sequences included"
    assert rig.dead_letters() == []
