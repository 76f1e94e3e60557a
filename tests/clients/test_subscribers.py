"""The subscribers of `samples/subscribers`, each with a subscription of its own on one topic."""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest

from deploy.local.platform.processes import GRACE, Process, Processes
from services.spanner_reader.core.stream.records import Mod
from shared.pubsub.channels import open_channel
from shared.pubsub.packer import PackerLimits
from shared.pubsub.stubs import PublishRequest, PubsubMessage, Subscription, publish_stub
from tests.clients.sessions import BUILT
from tests.documents.wire_messages import BATCHES, messages_of, order_record, orders
from tests.integration.pubsub_topics import a_topology

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SAMPLES: Final = BUILT.parents[1] / "samples" / "subscribers"
SUBSCRIBERS: Final[Mapping[str, Sequence[str]]] = {
    "python": [sys.executable, str(SAMPLES / "python" / "subscriber.py")],
    "node": ["node", str(BUILT / "subscriber" / "node" / "subscriber.mjs")],
    "go": [str(BUILT / "subscriber" / "go")],
    "java": [
        *("java", "-cp", f"{BUILT}/subscriber/java/target/classes:{BUILT}/subscriber/java/target/libraries/*"),
        "Subscriber",
    ],
}
TIMEOUT: Final = timedelta(seconds=120)
ROWS: Final = range(1_000, 1_020)
VERSIONS: Final = 4

# Of the messages in docs/reference/wire-format: table, key and row.
EXAMPLES: Final = [
    ("Orders", {"Id": "17"}, {"Item": "bolt", "Pieces": "40"}),
    ("Orders", {"Id": "18"}, None),
    ("Orders", {"Id": "19"}, {"Item": "screw", "Pieces": None}),
    ("Orders", {"Id": "20"}, {"Item": "washer", "Pieces": "many"}),
    ("Orders", {"Id": "21"}, {"Item": "gear", "Pieces": "7"}),
    ("weather", {"row_key": "JFK#2024-05-01"}, {"f": '{"temperature":"MTcuNQ=="}', "g": None}),
]
NEWEST: Final = [
    ("Orders", {"Id": str(row)}, None if row % 2 else {"Item": f"é <{VERSIONS}>", "Pieces": str(2**60 + row)})
    for row in ROWS
]


def published() -> Sequence[Any]:
    """Return the messages of many versions of some rows, out of order and some of them twice, and the examples."""
    maker, chance = orders(), random.Random(7)
    changes = []
    for row in ROWS:
        for version in range(1, VERSIONS + 1):
            key, values = f'{{"Id":"{row}"}}', f'{{"Item": "é <{version}>", "Pieces": "{2**60 + row}"}}'
            deleted = version == VERSIONS and row % 2
            mod, kind = (Mod(key, "{}", values), "DELETE") if deleted else (Mod(key, values, "{}"), "UPDATE")
            header, made = maker.changes(order_record(kind, mod, second=version))
            changes += made
    chance.shuffle(changes)
    messages = messages_of(header, changes, PackerLimits(changes_per_message=3))
    assert len(messages) > len(changes) / 3
    messages = [*messages, *messages[:5], *(make() for make in BATCHES.values())]
    chance.shuffle(messages)
    return messages


def refused() -> Mapping[str, Any]:
    """Return messages that no subscriber applies, by why."""
    (message,) = messages_of(*orders().changes(order_record("INSERT", Mod('{"Id":"1"}', '{"Item":"bolt"}', "{}"))))
    newer = json.loads(message.data)
    newer["header"]["format"] = 3
    shorter = json.loads(message.data) | {"rows": []}
    contradictory = json.loads(message.data) | {"rows": [None]}
    attributes = dict(message.attributes)
    return {
        "wire format 3, this subscriber reads up to 2: upgrade it": PubsubMessage(
            data=json.dumps(newer).encode(), attributes=attributes | {"format": "3"}
        ),
        "no change batch: it has no attribute format": PubsubMessage(data=b"hello"),
        "no change batch: its data does not read as one": PubsubMessage(
            data=json.dumps(shorter).encode(), attributes=attributes
        ),
        "no change batch: an upsert has a row, a delete has none": PubsubMessage(
            data=json.dumps(contradictory).encode(), attributes=attributes
        ),
    }


def changes_printed(subscriber: Process) -> Sequence[Any]:
    """Return the changes that a subscriber has printed, repeats too."""
    lines = subscriber.output().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


def refusals_printed(subscriber: Process) -> Counter[str]:
    """Return why a subscriber has refused messages, and how often."""
    lines = [line for line in subscriber.output().splitlines() if line.startswith("message ")]
    return Counter(line.partition(" refused: ")[2] for line in lines)


def has_received_everything(subscriber: Process, changes: int) -> bool | None:
    """Return True once a subscriber has received so many changes, and each message that it refuses twice; else None.

    It receives the next message of an ordering key when it has acknowledged the one before, and a message again when
    it has not.
    """
    refusals = refusals_printed(subscriber)
    return (len(changes_printed(subscriber)) >= changes and all(refusals[why] >= 2 for why in refused())) or None


@pytest.fixture(scope="module")
def subscriptions(pubsub_emulator: str) -> Mapping[str, str]:
    """Return a subscription for each language, by name; all hold the same messages."""
    with open_channel(pubsub_emulator) as channel:
        topic = a_topology(channel).topic
        create = channel.unary_unary(
            "/google.pubsub.v1.Subscriber/CreateSubscription",
            request_serializer=Subscription.SerializeToString,
            response_deserializer=Subscription.FromString,
        )
        names = {language: f"{topic.replace('/topics/', '/subscriptions/')}-{language}" for language in SUBSCRIBERS}
        for name in names.values():
            retry = {"minimum_backoff": timedelta(seconds=1), "maximum_backoff": timedelta(seconds=1)}
            create(Subscription(name=name, topic=topic, retry_policy=retry, enable_message_ordering=True), timeout=10)
        publish = publish_stub(channel)
        for message in [*published(), *refused().values()]:
            publish(PublishRequest(topic=topic, messages=[message]), timeout=10)
    return names


@pytest.fixture(scope="module")
def subscribers(
    subscriptions: Mapping[str, str], pubsub_emulator: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Process]]:
    """Return the subscribers when they have received everything and were interrupted."""
    assert BUILT.is_dir(), "the programs are not built: make clients"
    # Without the second setting Google's Node clients look for a metadata server.
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": pubsub_emulator, "METADATA_SERVER_DETECTION": "none"}
    expected = sum(int(message.attributes["change_count"]) for message in published())
    with Processes(tmp_path_factory.mktemp("subscribers"), os.environ) as processes:
        started = {
            language: processes.start(language, [*command, subscriptions[language]], environment)
            for language, command in SUBSCRIBERS.items()
        }
        for language, subscriber in started.items():
            processes.wait_until(
                partial(has_received_everything, subscriber, expected),
                f"the subscriber in {language}",
                TIMEOUT,
            )
        for subscriber in started.values():
            subscriber.expected_to_end = True
            subscriber.signal(signal.SIGINT)
        for subscriber in started.values():
            subscriber.wait(GRACE)
        yield started


@pytest.mark.parametrize("language", SUBSCRIBERS)
def test_a_subscriber_ends_with_the_newest_rows(subscribers: Mapping[str, Process], language: str) -> None:
    newest: dict[str, tuple[str, Any, Any]] = {}
    for change in changes_printed(subscribers[language]):
        assert (change["op"] == "DELETE") == (change["row"] is None)
        if change["newest"]:
            newest[json.dumps([change["table"], change["key"]])] = change["table"], change["key"], change["row"]
    entries = [row for _table, key, row in newest.values() if "id" in key]

    assert [row["mod_type"] for row in entries] == ["SET_CELL"]
    kept = [row for row in newest.values() if "id" not in row[1]]
    assert sorted(kept, key=str) == sorted([*NEWEST, *EXAMPLES], key=str)


@pytest.mark.parametrize("language", SUBSCRIBERS)
def test_a_subscriber_reports_why_it_refuses_a_message_and_does_not_acknowledge_it(
    subscribers: Mapping[str, Process], language: str
) -> None:
    assert refusals_printed(subscribers[language]).keys() == refused().keys()


@pytest.mark.parametrize("language", SUBSCRIBERS)
def test_an_interrupted_subscriber_ends(subscribers: Mapping[str, Process], language: str) -> None:
    assert subscribers[language].exit_code in {0, 128 + signal.SIGINT}
