"""The packer: whatever is added in whatever order, each key's changes leave once, in order, within the limits."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from msgspec.structs import replace

from shared.contracts.change_batch import Change
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.packer import REQUEST_BYTES, Message, Oversized, PackedRequest, Packer, PackerLimits, Receipt
from shared.pubsub.publisher import batch_message
from shared.pubsub.stubs import PublishRequest
from tests.builders import a_change, a_header
from tests.seeds import examples

KEYS = ("planes/0", "planes/1", "flüge/2")
HEADERS = (a_header("planes"), a_header("flüge"), a_header("planes"))  # the third is equal to the first, not the same
SMALL = PackerLimits(
    changes_per_message=3, bytes_per_message=5_000, messages_per_request=3, bytes_per_request=14_000, requests=2
)
TOPIC = "projects/p/topics/t"


def sized(identity: int, size: int, text: str = "x", old: int = 0) -> Change:
    change = a_change(identity, sequence=identity, name=text * size)
    return replace(change, old=f'{{"name":"{text * old}"}}') if old else change


def confirm_one(packer: Packer, number: int) -> list[PackedRequest]:
    """Add a change under `k`, and confirm the request that it leaves in; return that."""
    packer.add(a_header(), [("k", a_change(number))])
    requests = list(packer.requests())
    packer.confirm("k")
    return requests


class Packing(RuleBasedStateMachine):
    """Adds, publishes and confirms in any order, beside a model that only knows what was added."""

    receipts = Bundle("receipts")
    oversized = Bundle("oversized")

    paced = False
    ordered = True

    def __init__(self) -> None:
        super().__init__()
        self.packer = Packer(SMALL, paced=self.paced, ordered=self.ordered)
        self.numbers = iter(range(1, 1_000_000))
        self.added: dict[str, list[str]] = defaultdict(list)
        self.published: dict[str, list[str]] = defaultdict(list)
        self.under_way: dict[str, PackedRequest] = {}
        self.waiting_for: dict[Receipt, set[str]] = {}
        self.made: dict[str, Change] = {}
        self.unsettled: dict[str, Oversized] = {}
        self.announcements = 0
        self.announced = 0

    @rule(
        target=oversized,
        header=st.sampled_from(HEADERS),
        changes=st.lists(
            st.tuples(
                st.sampled_from(KEYS),
                st.sampled_from((1, 40, 400, 3_000, 7_000, 10_000, 20_000)),
                st.sampled_from("xé"),
                st.sampled_from((0, 40, 7_000, 20_000)),
            ),
            max_size=8,
        ),
    )
    def add(self, header: object, changes: list[tuple[str, int, str, int]]) -> object:
        made = [(key, sized(next(self.numbers), size, text, old)) for key, size, text, old in changes]
        receipt, oversized = self.packer.add(header, made, announce_under=KEYS[0])  # type: ignore[arg-type]
        too_large = {one.sequence for one in oversized}
        self.made |= {change.sequence: change for _key, change in made}
        for key, change in made:
            if change.sequence not in too_large:
                self.added[key].append(change.sequence)
        self.waiting_for[receipt] = {change.sequence for _key, change in made}
        if not made:
            self.announcements += 1
            self.waiting_for[receipt] = {f"announcement {self.announcements}"}
            self.added[KEYS[0]].append(f"announcement {self.announcements}")
        for one in oversized:
            self.unsettled[one.sequence] = one
            assert one.size > 5_000
            assert one.size <= replace(self.made[one.sequence], old=None).size() + 100
        return multiple(*oversized)

    @rule()
    def publish(self) -> None:
        for request in self.packer.requests():
            for other in self.under_way.values():
                assert not request.of_keys.keys() & other.of_keys.keys(), "two publishes of one key at once"
            assert len(request.of_keys) == 1 or not self.ordered
            self.under_way[request.ordering_key] = request
            self.check_limits(request)
        assert len(self.under_way) <= SMALL.requests

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if self.under_way:
            self.confirm_key(data.draw(st.sampled_from(sorted(self.under_way))))

    def confirm_key(self, first: str) -> None:
        request = self.under_way.pop(first)
        for key, messages in request.of_keys.items():
            for message in messages:
                for change in message.changes:
                    self.check_values(change)
                names = [change.sequence for change in message.changes]
                if not names:
                    self.announced += 1
                    names = [f"announcement {self.announced}"]
                self.published[key] += names
                for name in names:
                    self.note(name)
        self.check_done(self.packer.confirm(*request.of_keys))

    def check_values(self, published: Change) -> None:
        made = self.made[published.sequence]
        if published != made:
            assert made.size() > 5_000, "its old values were dropped although a message can hold them"
            assert published == made.without_old_values()

    @rule(one=consumes(oversized))
    def settle(self, one: Oversized) -> None:
        self.settle_one(one)

    def settle_one(self, one: Oversized) -> None:
        del self.unsettled[one.sequence]
        self.note(one.sequence)
        self.check_done(self.packer.settle(one))

    def note(self, sequence: str) -> None:
        for waited in self.waiting_for.values():
            waited.discard(sequence)

    def check_done(self, receipts: object) -> None:
        finished = {receipt for receipt, waited in self.waiting_for.items() if not waited}
        assert set(receipts) == finished  # type: ignore[call-overload]
        for receipt in finished:
            del self.waiting_for[receipt]

    def check_limits(self, request: PackedRequest) -> None:
        assert 1 <= len(request.messages) <= SMALL.messages_per_request
        for message in request.messages:
            assert len(message.changes) <= SMALL.changes_per_message
            if len(message.changes) > 1:
                assert self.sent(message, request.ordering_key).ByteSize() <= SMALL.bytes_per_message
        messages = [self.sent(message, key) for key, some in request.of_keys.items() for message in some]
        assert PublishRequest(topic=TOPIC, messages=messages).ByteSize() <= SMALL.bytes_per_request

    def sent(self, message: Message, key: str) -> Any:
        return batch_message(message, key, ordered=self.ordered)

    @invariant()
    def every_byte_is_of_a_key_or_of_an_oversized_change(self) -> None:
        of_oversized = sum(one.outstanding_bytes for one in self.unsettled.values())
        assert sum(map(self.packer.bytes_of, KEYS)) + of_oversized == self.packer.outstanding_bytes

    @invariant()
    def what_left_is_a_prefix_of_what_came(self) -> None:
        for key, sequences in self.published.items():
            assert sequences == self.added[key][: len(sequences)]
        assert self.packer.idle == (not self.waiting_for)

    def teardown(self) -> None:
        for one in list(self.unsettled.values()):
            self.settle_one(one)
        self.packer.hurry()
        self.publish()
        while self.under_way:
            self.confirm_key(min(self.under_way))
            self.publish()
        assert {key: names for key, names in self.added.items() if names} == self.published
        assert self.packer.outstanding_bytes == 0


class PackingWithRests(Packing):
    """The same where keys rest, and have rested at any time, also one of which nothing is known."""

    paced = True

    @rule(key=st.sampled_from(KEYS))
    def rest(self, key: str) -> None:
        self.packer.interval_ended(key)


class PackingWithoutOrderingKeys(PackingWithRests):
    """The same where a request may carry messages of several keys."""

    ordered = False


TestPacking = Packing.TestCase
TestPacking.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestPackingWithRests = PackingWithRests.TestCase
TestPackingWithRests.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestPackingWithoutOrderingKeys = PackingWithoutOrderingKeys.TestCase
TestPackingWithoutOrderingKeys.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_request_without_ordering_keys_takes_what_is_due_of_every_key() -> None:
    packer = Packer(ordered=False)
    packer.add(a_header(), [(f"planes/{number % 7}", a_change(number)) for number in range(100)])

    (request,) = packer.requests()

    assert request.of_keys.keys() == {f"planes/{number}" for number in range(7)}
    assert [len(message.changes) for message in request.messages] == [15, 15, 14, 14, 14, 14, 14]


def test_what_arrives_while_a_publish_is_outstanding_is_the_next_batch() -> None:
    packer = Packer()
    packer.add(a_header(), [("k", a_change(1))])
    first = list(packer.requests())
    for number in (2, 3, 4):
        packer.add(a_header(), [("k", a_change(number))])

    assert list(packer.requests()) == []
    packer.confirm("k")
    second = list(packer.requests())

    assert [len(request.messages[0].changes) for request in first + second] == [1, 3]


def test_what_comes_to_a_key_that_rests_waits_until_it_has_rested() -> None:
    packer = Packer(paced=True)
    first = confirm_one(packer, 1)
    for number in (2, 3):
        packer.add(a_header(), [("k", a_change(number)), ("other", a_change(number))])

    others = list(packer.requests())
    packer.interval_ended("k")
    second = list(packer.requests())

    assert [one.ordering_key for one in first + others + second] == ["k", "other", "k"]
    assert [len(one.messages[0].changes) for one in first + others + second] == [1, 2, 2]


def test_a_key_that_has_rested_while_its_request_was_under_way_goes_on_at_once() -> None:
    packer = Packer(paced=True)
    packer.add(a_header(), [("k", a_change(1))])
    list(packer.requests())
    packer.add(a_header(), [("k", a_change(2))])
    packer.interval_ended("k")

    assert list(packer.requests()) == []
    packer.confirm("k")
    assert [one.ordering_key for one in packer.requests()] == ["k"]


@pytest.mark.parametrize("limits", [PackerLimits(changes_per_message=3), PackerLimits(bytes_per_message=900)])
def test_a_full_message_rests_no_longer(limits: PackerLimits) -> None:
    packer = Packer(limits, paced=True)
    confirm_one(packer, 1)
    published = []
    for number in (2, 3, 4):
        packer.add(a_header(), [("k", sized(number, 100))])
        published.append(len(list(packer.requests())))

    assert published == [0, 0, 1]


def test_who_is_in_a_hurry_rests_no_more() -> None:
    packer = Packer(paced=True)
    for number in (1, 2):
        confirm_one(packer, number)
    packer.hurry()

    (request,) = packer.requests()
    packer.confirm("k")
    packer.add(a_header(), [("k", a_change(3))])

    assert len(request.messages[0].changes) == 1
    assert len(list(packer.requests())) == 1


def test_one_change_per_message_still_fills_a_request() -> None:
    packer = Packer(PackerLimits(changes_per_message=1))
    packer.add(a_header(), [("k", a_change(number)) for number in range(1_500)])

    (request,) = packer.requests()

    assert len(request.messages) == 1_000
    assert {len(message.changes) for message in request.messages} == {1}


def test_another_column_list_cuts_the_batch() -> None:
    packer = Packer()
    wide = a_header(columns=(("id", "INT64"), ("name", "STRING"), ("seats", "INT64"), ("engines", "INT64")))
    for header in (a_header(), a_header(), wide, a_header()):
        packer.add(header, [("k", a_change())])

    (request,) = packer.requests()

    assert [(message.header, len(message.changes)) for message in request.messages] == [
        (a_header(), 2),
        (wide, 1),
        (a_header(), 1),
    ]


def test_a_change_over_the_soft_limit_travels_alone_and_over_the_hard_limit_not_at_all() -> None:
    packer = Packer(PackerLimits(bytes_per_message=1_000))
    receipt, oversized = packer.add(
        a_header(), [("k", a_change(1)), ("k", sized(2, 8_900_000)), ("k", sized(3, REQUEST_BYTES)), ("k", a_change(4))]
    )

    sizes = []
    done: list[Receipt] = []
    while requests := list(packer.requests()):
        for request in requests:
            messages = [batch_message(message, "k") for message in request.messages]
            sizes.append(PublishRequest(topic=TOPIC, messages=messages).ByteSize())
            assert [len(message.changes) for message in request.messages] == [1, 1, 1]
        done += packer.confirm("k")

    (too_large,) = oversized
    assert too_large.sequence == a_change(3, sequence=3).sequence
    assert max(sizes) < REQUEST_BYTES
    assert done == []
    assert packer.outstanding_bytes == too_large.outstanding_bytes
    assert list(packer.settle(too_large)) == [receipt]
    assert packer.outstanding_bytes == 0


def test_a_change_that_only_its_old_values_make_too_large_is_published_without_them_and_reports_so() -> None:
    packer = Packer()
    fits = sized(1, 4_000_000, old=4_000_000)
    too_large = sized(2, 5_000_000, old=5_000_000)
    deleted = replace(a_change(3, sequence=3, op="DELETE"), place="{}", old=f'{{"name":"{"x" * REQUEST_BYTES}"}}')
    _receipt, oversized = packer.add(a_header(), [("k", fits), ("l", too_large), ("m", deleted)])
    published = [change for request in packer.requests() for message in request.messages for change in message.changes]

    assert oversized == []
    assert published[0] == fits
    assert published[1:] == [
        replace(too_large, old=None, place='{"transaction":"t","old_values_omitted":true}'),
        replace(deleted, old=None, place='{"old_values_omitted":true}'),
    ]
    assert packer.old_values_omitted == 2


def test_a_header_that_fits_no_message_is_refused() -> None:
    header = a_header(columns=[(f"c{number}" + "x" * 10_000, "INT64") for number in range(1_000)], key=("c0",))

    with pytest.raises(MisconfiguredError, match="more than a message holds"):
        Packer().add(header, [])
