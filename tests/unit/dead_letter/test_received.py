"""Whatever comes to the dead-letter topic becomes a dead letter, and the same thing failing again is the same one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.cdc_consumer.core.stream.poison import poison_change
from services.dead_letter.core.received import Received, to_arrival
from shared.contracts.change_batch import FORMAT, decode_batch, encode_batch
from shared.contracts.dead_letter import REPLAY_FORCED, REPLAY_OF, DeadLetter, to_attributes
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.dead_letters import dead_letter_message
from tests.builders import COMMITTED, a_change, a_header

AT: Final = Nanoseconds(1_760_000_000_000_000_000)
NO_TIME: Final = Nanoseconds(0)
BATCH: Final = encode_batch(a_header(), [a_change(7)])
FORWARDED: Final = {
    "CloudPubSubDeadLetterSourceDeliveryCount": "100",
    "CloudPubSubDeadLetterSourceSubscription": "millrace-bigquery",
    "CloudPubSubDeadLetterSourceSubscriptionProject": "shop",
    "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-21T09:00:00.123+00:00",
}


def received(data: bytes, attributes: Mapping[str, str], ordering_key: str = "") -> DeadLetter:
    """Return what a message of the dead-letter topic becomes."""
    return to_arrival(Received(data, attributes, ordering_key, "1", AT, "")).dead_letter


def failed_again(sent: DeadLetter, forced: bool = False) -> DeadLetter:
    """Return what comes of a dead letter that is replayed and fails as it did before."""
    replayed = dict(sent.attributes) | {REPLAY_OF: sent.identity} | ({REPLAY_FORCED: "true"} if forced else {})
    again = replace(sent, attributes=replayed, failed_at=AT, reason=Reason.BAD_CHANGE, detail="again", identity="")
    return received(sent.data, to_attributes(again), "")


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("whole", [False, True])
def test_a_dead_letter_of_any_reason_comes_as_it_was_sent(reason: Reason, whole: bool) -> None:
    sent = replace(a_dead_letter(), reason=reason, identity="")
    if whole:
        sent = replace(sent, table="", key="", sequence="", commit_timestamp="", identity="")

    assert received(sent.data, to_attributes(sent)) == sent


def test_a_message_at_pubsubs_own_limit_keeps_the_name_that_its_sender_gave_it() -> None:
    sent = replace(
        a_dead_letter(), data=b"x" * 9_899_000, attributes={f"a{i}": "v" * 20 for i in range(99)}, identity=""
    )
    message = dead_letter_message(sent)

    found = received(message.data, dict(message.attributes))

    assert found.identity == sent.identity
    assert found.payload_bytes == 9_899_000


def test_what_pubsub_forwards_was_not_applied_in_time_and_reports_after_how_many_deliveries() -> None:
    found = received(BATCH, {"table": "planes", "source": "s"} | FORWARDED, "planes/3")

    assert found.reason is Reason.NOT_APPLIED_IN_TIME
    assert "100 times by subscription millrace-bigquery of project shop" in found.detail
    assert (found.data, found.ordering_key) == (BATCH, "planes/3")
    assert found.attributes == {"table": "planes", "source": "s"}, "as it was published, for the replay"
    assert (found.table, found.key, found.commit_timestamp) == ("planes", "[7]", COMMITTED)
    assert found.sequence == a_change(7).sequence


def test_the_subscription_may_come_as_a_full_name_and_a_count_may_lack() -> None:
    attributes = {"CloudPubSubDeadLetterSourceSubscription": "projects/shop/subscriptions/s"}

    assert (
        received(BATCH, attributes).detail == "delivered too often by subscription projects/shop/subscriptions/s and "
        "never acknowledged: forwarded by its dead-letter policy"
    )


@pytest.mark.parametrize(
    ("data", "table"),
    [
        pytest.param(encode_batch(a_header(), [a_change(1), a_change(2)]), "planes", id="two changes"),
        pytest.param(BATCH.replace(b'{"header":', b'{ "header":'), "planes", id="in a form that no reader writes"),
        pytest.param(BATCH.replace(b'"format":1', b'"format":%d' % (FORMAT + 1)), "", id="of a newer format"),
    ],
)
def test_what_is_forwarded_and_cannot_be_one_change_stays_a_whole_message(data: bytes, table: str) -> None:
    found = received(data, FORWARDED)

    assert data != BATCH
    assert (found.reason, found.data) == (Reason.NOT_APPLIED_IN_TIME, data)
    assert (found.table, found.key, found.sequence) == (table, "", "")


def test_what_is_forwarded_twice_is_one_dead_letter() -> None:
    later = FORWARDED | {"CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-22T10:00:00+00:00"}
    for data in (BATCH, b"garbage"):
        first, second = received(data, {"a": "b"} | FORWARDED, "k"), received(data, {"a": "b"} | later, "k")
        assert first.identity == second.identity


def test_a_forwarded_change_is_the_dead_letter_that_the_consumer_makes_of_it() -> None:
    """Else a change that was forwarded, replayed and then dead-lettered by the consumer would be two dead letters."""
    forwarded = received(BATCH, FORWARDED | {"table": "planes"}, "planes/3")

    assert by_the_consumer(BATCH, forwarded.attributes, "planes/3").identity == forwarded.identity


def test_foreign_junk_is_unexplained_and_kept_with_all_that_is_known() -> None:
    found = received(b"\xff\x00junk", {"who": "knows"}, "somewhere")

    assert found.reason is Reason.UNEXPLAINED
    assert (found.data, found.attributes, found.ordering_key) == (b"\xff\x00junk", {"who": "knows"}, "somewhere")
    assert found.failed_at == AT
    assert "another program published it to the dead-letter topic" in found.detail


@pytest.mark.parametrize(
    ("attribute", "value", "detail"),
    [
        ("dead_letter_reason", "of_a_later_version", "'of_a_later_version' is not a valid Reason"),
        ("dead_letter_failed_at", "yesterday", "not an RFC 3339 timestamp"),
        ("dead_letter_failed_at", "2026-13-41T00:00:00Z", "a dead letter that this version does not understand"),
        ("dead_letter_failed_at", "2300-01-01T00:00:00Z", "a time of failure outside 1677 to 2262"),
        ("dead_letter_payload_bytes", "many", "invalid literal"),
        ("dead_letter_payload_bytes", "-1", "a size that nothing has"),
        ("dead_letter_payload_bytes", "9" * 400, "a size that nothing has"),
    ],
)
def test_a_dead_letter_that_is_not_understood_keeps_what_it_says_of_itself(
    attribute: str, value: str, detail: str
) -> None:
    sent = a_dead_letter()

    found = received(sent.data, to_attributes(sent) | {attribute: value})

    assert found.reason is Reason.UNEXPLAINED
    assert detail in found.detail
    assert sent.detail in found.detail
    assert found.identity == sent.identity, "once it is understood, it is the same dead letter"
    assert (found.data, found.attributes, found.ordering_key) == (sent.data, sent.attributes, sent.ordering_key)
    assert (found.table, found.key, found.sequence) == (sent.table, sent.key, sent.sequence)


@pytest.mark.parametrize("missing", ["dead_letter_reason", "dead_letter_identity", "dead_letter_failed_at"])
def test_so_does_one_that_does_not_say_all(missing: str) -> None:
    sent = a_dead_letter()
    attributes = to_attributes(sent)
    del attributes[missing]

    found = received(sent.data, attributes)

    assert (found.reason, found.identity) == (Reason.UNEXPLAINED, sent.identity)


def test_a_dead_letter_cannot_take_the_name_of_another() -> None:
    """As an attempt of that other one, its own bytes would be lost."""
    taken, other = a_dead_letter(), replace(a_dead_letter(), key="[8]", identity="")

    found = received(other.data, to_attributes(other) | {"dead_letter_identity": taken.identity})

    assert found.identity == other.identity != taken.identity


TEXTS: Final = st.text(max_size=12)
NAMES: Final = st.one_of(
    TEXTS,
    st.sampled_from([REPLAY_OF, "traceparent", *FORWARDED]),
    st.sampled_from(["reason", "identity", "failed_at", "key", "table", "sequence", "payload_bytes", "other"]).map(
        "dead_letter_{}".format
    ),
)
VALUES: Final = st.one_of(
    TEXTS,
    st.sampled_from(
        [
            "undecodable",
            "2026-11-21T09:00:00Z",
            "1_0",
            "-3",
            "٣",
            "9" * 5000,
            "9" * 40,
            "9999-12-31T23:59:59Z",
            "0" * 32,
            "x" * 1024,
        ]
    ),
)
PAYLOADS: Final = st.one_of(
    st.binary(max_size=40),
    st.lists(st.builds(a_change, st.integers(0, 3), st.integers(0, 3)), max_size=3).map(
        lambda changes: encode_batch(a_header(), changes)
    ),
    st.integers(0, len(BATCH)).map(lambda at: BATCH[:at] + BATCH[at + 1 :]),
    st.sampled_from([b"[" * 100_000, BATCH.replace(b'{"id":"7"}', b"[" * 10_000), BATCH.replace(b'"7"', b"null")]),
)


@given(PAYLOADS, st.dictionaries(NAMES, VALUES, max_size=6), TEXTS, st.booleans())
@example(BATCH, {}, "", False)
def test_any_message_becomes_a_dead_letter_and_failing_again_after_a_replay_it_is_the_same(
    data: bytes, attributes: Mapping[str, str], ordering_key: str, forced: bool
) -> None:
    found = received(data, attributes, ordering_key)

    assert found.data == data
    assert found.identity
    left_out = attributes.keys() - found.attributes.keys()
    assert found.attributes == {name: value for name, value in attributes.items() if name not in left_out}
    assert all(name.startswith(("dead_letter_", "CloudPubSubDeadLetterSource")) for name in left_out)
    assert abs(found.failed_at) < 1 << 63
    assert found.payload_bytes is None or 0 <= found.payload_bytes < 1 << 63
    assert received(data, attributes, ordering_key) == found
    if found.identity != attributes.get("dead_letter_identity"):  # else the name may be made up
        assert failed_again(found, forced).identity == found.identity


@given(st.lists(st.builds(a_change, st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3), st.data())
def test_a_change_that_the_consumer_cuts_out_keeps_its_name(changes: list[object], data: st.DataObject) -> None:
    batch = encode_batch(a_header(), changes)  # type: ignore[arg-type]
    index = data.draw(st.integers(0, len(changes) - 1))
    first = by_the_consumer(batch, {"table": "planes"}, "planes/3", index)

    found = received(first.data, to_attributes(first))
    second = by_the_consumer(found.data, dict(found.attributes) | {REPLAY_OF: found.identity}, found.ordering_key)
    forwarded = received(found.data, dict(found.attributes) | {REPLAY_OF: found.identity} | FORWARDED, "planes/3")

    assert received(second.data, to_attributes(second)).identity == found.identity
    assert forwarded.identity == found.identity


def by_the_consumer(data: bytes, attributes: Mapping[str, str], ordering_key: str, index: int = 0) -> DeadLetter:
    """Return the dead letter that the consumer makes of a change of a message."""
    batch = decode_batch(data)
    poison = poison_change(0, batch, index, Reason.VALUE_DOES_NOT_FIT, "column seats of type INT64: not a number")
    return DeadLetter(
        data=batch.cut(index),
        attributes=attributes,
        ordering_key=ordering_key,
        reason=poison.reason,
        detail=poison.detail,
        failed_at=NO_TIME,
        failed_in="cdc_consumer",
        table=poison.table,
        key=poison.key,
        sequence=poison.sequence,
        commit_timestamp=poison.commit_timestamp,
    )


def a_dead_letter() -> DeadLetter:
    """Return a change that did not fit, as a dead letter."""
    return by_the_consumer(BATCH, {"table": "planes", "change_count": "1"}, "planes/3")
