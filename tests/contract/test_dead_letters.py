"""What every DeadLetters promises: the fake, and the dead-letter topic (on the Pub/Sub emulator)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import grpc
import pytest

from services.cdc_consumer.ports import DeadLetters
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import parse_timestamp
from shared.pubsub.channels import open_channel
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.runtime.stop import Stop
from tests.fakes.dead_letters import FakeDeadLetters
from tests.integration.pubsub_topics import a_topology, pull
from tests.integration.wire import wire

GARBAGE: Final = DeadLetter(
    data=b'\x00\xff{"header"',
    attributes={"table": "planes", "traceparent": "00-1-2-00", "empty": ""},
    ordering_key="planes/3",
    reason=Reason.UNDECODABLE,
    detail="unexpected end of data\nat byte 9: \N{SNOWMAN}",
    failed_at=parse_timestamp("2026-11-21T12:00:00.123456789Z"),
    failed_in="cdc_consumer",
)
CHANGE: Final = replace(
    GARBAGE,
    data=b'{"header":{}}',
    reason=Reason.REFUSED_BY_BIGQUERY,
    table="planes",
    key='["7"]',
    sequence="0000000000000001/0000000000000000/0000000000000000/0000000000000000",
    commit_timestamp="2026-11-21T12:00:00.123456Z",
    identity="",
)
TOO_LARGE: Final = replace(CHANGE, data=b"", reason=Reason.TOO_LARGE, payload_bytes=9_200_000, key='["8"]', identity="")


@dataclass
class Place:
    """A DeadLetters, what it has kept by now, and a store that can go away."""

    dead_letters: DeadLetters
    kept: Callable[[], Sequence[DeadLetter]]
    make_unavailable: Callable[[], None]
    come_back: Callable[[], None]

    def by_identity(self) -> dict[str, DeadLetter]:
        return {one.identity: one for one in self.kept()}


class DeadLettersContract:
    def test_dead_letters_are_kept_as_they_came(self, place: Place) -> None:
        place.dead_letters.keep([GARBAGE, CHANGE, TOO_LARGE])

        assert place.by_identity() == {one.identity: one for one in (GARBAGE, CHANGE, TOO_LARGE)}

    def test_a_dead_letter_kept_twice_is_one_dead_letter(self, place: Place) -> None:
        place.dead_letters.keep([CHANGE, GARBAGE])
        place.dead_letters.keep([CHANGE])
        place.dead_letters.keep([replace(CHANGE, detail="said otherwise", failed_in="another")])

        assert set(place.by_identity()) == {CHANGE.identity, GARBAGE.identity}

    def test_more_dead_letters_than_one_request_takes_are_all_kept(self, place: Place) -> None:
        many = [replace(GARBAGE, data=f"{number}".encode(), identity="") for number in range(1_500)]
        large = [replace(GARBAGE, data=bytes([number]) * 4_000_000, identity="") for number in range(3)]
        place.dead_letters.keep([*many, *large])

        assert place.by_identity() == {one.identity: one for one in (*many, *large)}

    def test_no_dead_letters_are_nothing(self, place: Place) -> None:
        place.dead_letters.keep([])

        assert place.kept() == []

    def test_while_the_store_is_unavailable_the_call_fails_and_all_can_be_kept_again_later(self, place: Place) -> None:
        place.dead_letters.keep([GARBAGE])
        place.make_unavailable()
        with pytest.raises(TransientError):
            place.dead_letters.keep([CHANGE, TOO_LARGE])
        with pytest.raises(TransientError):
            place.dead_letters.keep([CHANGE, TOO_LARGE])
        place.come_back()
        place.dead_letters.keep([CHANGE, TOO_LARGE])

        assert place.by_identity() == {one.identity: one for one in (GARBAGE, CHANGE, TOO_LARGE)}


class TestFakeDeadLetters(DeadLettersContract):
    @pytest.fixture
    def place(self) -> Place:
        dead_letters = FakeDeadLetters()

        def unavailable(calls: int) -> None:
            dead_letters.unavailable = calls

        return Place(
            dead_letters, lambda: list(dead_letters.kept.values()), lambda: unavailable(1_000), lambda: unavailable(0)
        )


@pytest.mark.integration
class TestDeadLetterPublisher(DeadLettersContract):
    @pytest.fixture
    def place(self, pubsub_emulator: str) -> Iterator[Place]:
        with open_channel(pubsub_emulator) as hands, wire(pubsub_emulator) as way, open_channel(way.address) as channel:
            topology = a_topology(hands)
            dead_letters = DeadLetterPublisher(channel, topology.dead_letter_topic, Stop(), budget=timedelta(seconds=1))
            seen: list[DeadLetter] = []

            def kept() -> Sequence[DeadLetter]:
                received = pull(hands, topology.dead_letter_subscription)
                seen.extend(from_message(one.message.data, dict(one.message.attributes)) for one in received)
                return seen

            def come_back() -> None:
                way.fix()
                grpc.channel_ready_future(channel).result(30)  # which tries more and more seldom

            yield Place(dead_letters, kept, way.cut, come_back)
