"""What `docs/reference/wire-format.md` shows other subscribers is run here, on a topic that a reader publishes to."""

import json
import random
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from deploy.local.platform.processes import Process, Processes
from deploy.local.platform.source import SpannerDatabase, Write
from shared.contracts.change_batch import decode_batch, encode_batch
from shared.pubsub.stubs import PublishRequest, Subscription, publish_stub
from shared.pubsub.topology import PubsubTopology
from tests.integration.pubsub_topics import pull
from tests.unit.bigtable_reader.readings import a_record, outputs
from tests.worlds.spanner_pipeline import SpannerPipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[2]
TIMEOUT: Final = timedelta(seconds=150)
PLACEHOLDER: Final = "projects/my-project/subscriptions/my-subscription"
DDL: Final = (
    "CREATE TABLE Orders (Id INT64 NOT NULL, Item STRING(MAX)) PRIMARY KEY (Id)",
    "CREATE TABLE Lines (Id INT64 NOT NULL, Line INT64 NOT NULL, Pieces INT64) PRIMARY KEY (Id, Line)",
    "CREATE CHANGE STREAM Everything FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
)
ORDER: Final = (
    Write("insert", "Orders", {"Id": 17, "Item": "bolt"}),
    Write("insert", "Lines", {"Id": 17, "Line": 1, "Pieces": 40}),
    Write("insert", "Lines", {"Id": 17, "Line": 2, "Pieces": 2}),
)


def shown(language: str) -> Sequence[str]:
    """Return the document's code in a language, block by block."""
    text = (ROOT / "docs" / "reference" / "wire-format.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def defined(name: str) -> Any:
    """Return what a block of the document defines."""
    (block,) = [one for one in shown("python") if f"def {name}(" in one]
    scope: dict[str, Any] = {"json": json}
    exec(block, scope)  # noqa: S102  it is what the test is of
    return scope


@pytest.fixture
def orders(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerDatabase:
    """Return a database that a reader publishes the changes of."""
    pipeline = spanner_pipeline(database(*DDL), database())
    pipeline.start()
    return pipeline.database


def published(processes: Processes, channel: grpc.Channel, topology: PubsubTopology, changes: int) -> Sequence[Any]:
    """Return the messages with so many changes in all, once they are there."""
    messages: list[Any] = []

    def there() -> bool | None:
        messages.extend(one.message for one in pull(channel, topology.subscription))
        return sum(int(one.attributes["change_count"]) for one in messages) >= changes or None

    processes.wait_until(there, f"{changes} changes", TIMEOUT)
    return messages


def of_bigtable() -> Sequence[Any]:
    """Return batches of a Bigtable table, an image and an entry, such as may be on the same topic."""
    makers, record = outputs(entries=True), a_record(b"row")
    assert makers.images is not None
    assert makers.entries is not None
    image = makers.images.image(b"row", {}, record, 1)
    ((_key, entry),), _refused = makers.entries.changes(record)
    made = [(image.header, image.change), (makers.entries.header, entry)]
    batches = [json.loads(encode_batch(header, [change])) for header, change in made]
    assert [(batch["header"]["origin"], len(batch["place"])) for batch in batches] == [("stream", 1)] * 2
    return batches


def test_the_ten_lines_print_every_change(
    orders: SpannerDatabase,
    pubsub_emulator: str,
    channel: grpc.Channel,
    topology: PubsubTopology,
    new_processes: Processes,
    tmp_path: Path,
) -> None:
    mine = f"{topology.subscription}-mine"
    create = channel.unary_unary(
        "/google.pubsub.v1.Subscriber/CreateSubscription",
        request_serializer=Subscription.SerializeToString,
        response_deserializer=Subscription.FromString,
    )
    create(Subscription(name=mine, topic=topology.topic), timeout=10)
    program = shown("python")[0]
    assert len([line for line in program.splitlines() if line]) <= 10
    assert PLACEHOLDER in program
    file = tmp_path / "subscriber.py"
    file.write_text(program.replace(PLACEHOLDER, mine))
    subscriber: Process = new_processes.start(
        "subscriber", [sys.executable, str(file)], {"PUBSUB_EMULATOR_HOST": pubsub_emulator}
    )
    orders.commit(ORDER)
    orders.commit([Write("delete", "Orders", {"Id": 17})])

    def printed() -> set[tuple[str, str, str]]:
        lines = [line.split(" ", 3) for line in subscriber.output().splitlines()]
        return {(table, op, row) for table, op, _sequence, row in lines}

    wanted = {
        ("Orders", "UPSERT", '{"Id": "17", "Item": "bolt"}'),
        ("Lines", "UPSERT", '{"Id": "17", "Line": "1", "Pieces": "40"}'),
        ("Lines", "UPSERT", '{"Id": "17", "Line": "2", "Pieces": "2"}'),
        ("Orders", "DELETE", '{"Id": "17"}'),
    }
    new_processes.wait_until(lambda: printed() == wanted or None, "the changes", TIMEOUT)
    assert pull(channel, mine) == [], "it acknowledges what it has"
    subscriber.expected_to_end = True
    subscriber.signal(signal.SIGTERM)


def test_a_transaction_is_whole_once_whatever_the_order_and_the_repeats(
    orders: SpannerDatabase, channel: grpc.Channel, topology: PubsubTopology, new_processes: Processes
) -> None:
    orders.commit(ORDER)
    orders.commit(
        [Write("update", "Orders", {"Id": 17, "Item": "nut"}), Write("delete", "Lines", {"Id": 17, "Line": 2})]
    )
    orders.commit([Write("insert", "Orders", {"Id": number, "Item": "many"}) for number in range(100, 200)])
    batches = [json.loads(one.data) for one in published(new_processes, channel, topology, 3 + 2 + 100)]
    assert len(batches) > 10, "it came in pieces"
    reconstructed = json.loads(Path(ROOT, "docs/reference/wire-format/spanner-reconstructed.json").read_text())["data"]
    batches += [*of_bigtable(), reconstructed]
    transactions = defined("transactions")["transactions"]
    (example,) = [json.loads(one) for one in shown("json") if one.startswith("[[")]

    for seed in range(20):
        chance = random.Random(seed)
        came = [*batches, *chance.sample(batches, len(batches) // 2)]
        chance.shuffle(came)
        whole = list(transactions(came))
        assert sorted(map(len, whole)) == [2, 3, 100]
        (first,) = [one for one in whole if len(one) == 3]
        assert sorted(map(str, first)) == sorted(map(str, example))
        assert [table for table, *_ in first] in (["Orders", "Lines", "Lines"], ["Lines", "Lines", "Orders"])
    lost = next(one for one in batches if one["op"])
    assert sum(map(len, transactions([one for one in batches if one is not lost]))) < 105, "what lacks one is not whole"


def test_the_newest_of_each_row_wins_whatever_the_order_and_the_repeats(
    orders: SpannerDatabase, channel: grpc.Channel, topology: PubsubTopology, new_processes: Processes
) -> None:
    for number in range(12):
        orders.commit([Write("insert_or_update", "Orders", {"Id": number % 4, "Item": f"item {number}"})])
    orders.commit([Write("delete", "Orders", {"Id": 2})])
    batches = [json.loads(one.data) for one in published(new_processes, channel, topology, 13)]

    for seed in range(20):
        chance = random.Random(seed)
        came = [*batches, *batches]
        chance.shuffle(came)
        kept = defined("apply")
        for batch in came:
            kept["apply"](batch)
        rows = [row for _sequence, row in kept["newest"].values()]
        assert sorted(map(str, filter(None, rows))) == [str({"Id": str(n), "Item": f"item {8 + n}"}) for n in (0, 1, 3)]
        assert rows.count(None) == 1


def test_a_message_is_what_the_document_says(
    orders: SpannerDatabase, channel: grpc.Channel, topology: PubsubTopology, new_processes: Processes
) -> None:
    orders.commit(ORDER)
    example = json.loads(shown("json")[0])
    assert decode_batch(shown("json")[0].encode()), "the example is one that a consumer reads"
    page = Path(ROOT, "docs/reference/wire-format.md").read_text()
    documented = set(re.findall(r"^\| (`[a-z_`, ]+) \|", page, re.MULTILINE))
    names = {name for one in documented for name in re.findall(r"`([a-z_.]+)`", one)}

    for message in published(new_processes, channel, topology, 3):
        assert set(message.attributes) <= names
        batch = json.loads(message.data)
        assert _shape(batch) == _shape(example) or not batch["op"]
        assert set(batch["header"]) == set(example["header"])
        table, _, bucket = message.ordering_key.partition("/")
        assert table == message.attributes["table"] == batch["header"]["table"]
        assert 0 <= int(bucket) < 16


def _shape(batch: Mapping[str, Any]) -> Mapping[str, Iterable[str]]:
    """Return the names that a batch has, and those of a change's place."""
    return {
        "": sorted(batch),
        "header": sorted(batch["header"]),
        "place": sorted(batch["place"][0]) if batch["place"] else [],
    }


def test_an_announcement_which_has_no_changes_is_passed_over(channel: grpc.Channel, topology: PubsubTopology) -> None:
    empty: dict[str, list[object]] = {
        name: [] for name in ("op", "mod_type", "sequence", "commit_timestamp", "place", "keys", "rows", "old")
    }
    header = json.loads(shown("json")[0])["header"]
    data = json.dumps({"header": header, **empty}).encode()
    publish_stub(channel)(PublishRequest(topic=topology.topic, messages=[{"data": data}]), timeout=10)
    (received,) = pull(channel, topology.subscription)
    batch = json.loads(received.message.data)

    assert list(defined("transactions")["transactions"]([batch])) == []
    kept = defined("apply")
    kept["apply"](batch)
    assert kept["newest"] == {}
