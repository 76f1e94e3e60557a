"""Dead letters keep what came, and the same dead letter has the same name however often it arrives."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.dead_letter import REPLAY_OF, DeadLetter, from_message, replayed_attributes, to_attributes
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

CHANGE = DeadLetter(
    data=b'{"header":{}}',
    attributes={"table": "Singers", "source": "s"},
    ordering_key="Singers/3",
    reason=Reason.VALUE_DOES_NOT_FIT,
    detail="column Age of type INT64: not a whole number",
    failed_at=Nanoseconds(1_700_000_000_123_456_789),
    failed_in="cdc_consumer",
    table="Singers",
    key="[1]",
    sequence="1/2/3/0",
    commit_timestamp="2026-11-21T09:00:00Z",
)
WHOLE = replace(CHANGE, table="", key="", sequence="", commit_timestamp="", reason=Reason.UNDECODABLE, identity="")


@pytest.mark.parametrize("sent", [CHANGE, WHOLE, replace(CHANGE, data=b"", payload_bytes=12_000_000, identity="")])
def test_a_dead_letter_travels_as_a_message_and_comes_back_the_same(sent: DeadLetter) -> None:
    assert from_message(sent.data, to_attributes(sent)) == sent


def test_the_original_attributes_stay_untouched_beside_ours() -> None:
    attributes = to_attributes(CHANGE)

    assert {name: attributes[name] for name in CHANGE.attributes} == CHANGE.attributes
    assert all(name.startswith("dead_letter_") for name in attributes.keys() - CHANGE.attributes.keys())


def test_no_attribute_is_longer_than_pubsub_takes_and_the_name_stays() -> None:
    dead_letter = replace(CHANGE, detail="é" * 2000, key="k" * 5000, table="t" * 5000, identity="")

    attributes = to_attributes(dead_letter)

    assert max(len(value.encode()) for value in attributes.values()) <= 1024
    assert from_message(dead_letter.data, attributes).identity == dead_letter.identity


def test_the_same_failure_later_elsewhere_or_replayed_is_the_same_dead_letter() -> None:
    again = replace(
        CHANGE, failed_at=Nanoseconds(1), detail="other words", reason=Reason.REFUSED_BY_BIGQUERY, identity="",
        attributes=dict(CHANGE.attributes) | {REPLAY_OF: CHANGE.identity},
    )  # fmt: skip

    assert again.identity == CHANGE.identity


def test_a_whole_message_is_the_same_dead_letter_when_it_fails_again_as_a_replay() -> None:
    on_the_way = {"traceparent": "00-1-2-00", "CloudPubSubDeadLetterSourceDeliveryCount": "100"}
    again = replace(WHOLE, attributes=dict(WHOLE.attributes) | {REPLAY_OF: WHOLE.identity} | on_the_way, identity="")

    assert again.identity == WHOLE.identity


@pytest.mark.parametrize(
    ("dead_letter", "other"),
    [
        *[(CHANGE, other) for other in ({"table": "Albums"}, {"key": "[2]"}, {"sequence": "1/2/4/0"}, {"data": b"x"})],
        *[(WHOLE, other) for other in ({"data": b"x"}, {"ordering_key": "Singers/4"}, {"attributes": {"table": "S"}})],
    ],
)
def test_another_change_or_message_is_another_dead_letter(dead_letter: DeadLetter, other: dict[str, Any]) -> None:
    assert replace(dead_letter, identity="", **other).identity != dead_letter.identity


@given(st.lists(st.text(), min_size=3, max_size=3), st.lists(st.text(), min_size=3, max_size=3))
def test_no_two_dead_letters_run_into_the_same_name(a: list[str], b: list[str]) -> None:
    def named(parts: list[str]) -> str:
        return replace(CHANGE, table=parts[0], key=parts[1], sequence="1", data=parts[2].encode(), identity="").identity

    assert (named(a) == named(b)) == (a == b)


def test_a_message_that_is_no_dead_letter_is_reported_as_none() -> None:
    for attributes in ({"who": "knows"}, {"dead_letter_reason": "undecodable", "dead_letter_identity": "x"}):
        with pytest.raises(ValueError, match="not a dead letter"):
            from_message(b"junk", attributes)


@pytest.mark.parametrize(("forced", "added"), [(False, {}), (True, {"replay_forced": "true"})])
def test_a_replayed_message_has_its_attributes_and_reports_whose_replay_it_is(
    forced: bool, added: dict[str, str]
) -> None:
    on_the_way = {"replay_of": "an earlier one", "replay_forced": "true", "CloudPubSubDeadLetterSourceProject": "p"}
    on_the_way |= {"googclient_schemaencoding": "JSON"}
    dead_letter = replace(
        CHANGE, attributes=dict(CHANGE.attributes) | on_the_way | {"traceparent": "00-1-2-00"}, identity=""
    )

    expected = dict(CHANGE.attributes) | {"traceparent": "00-1-2-00", "replay_of": dead_letter.identity} | added
    assert replayed_attributes(dead_letter, forced=forced) == expected
    again = replace(dead_letter, attributes=replayed_attributes(dead_letter, forced=forced), identity="")
    assert again.identity == dead_letter.identity


@pytest.mark.parametrize(("most", "forced"), [(99, False), (98, True)])
def test_a_replayed_message_without_room_for_its_marks_is_refused(most: int, forced: bool) -> None:
    attributes = {f"a{n}": "v" for n in range(most)}
    added = {"traceparent": "x"} | {"replay_of": "an earlier one"}
    found = replayed_attributes(replace(WHOLE, attributes=attributes | {"replay_of": "x"}, identity=""), forced=forced)
    assert len(found) == 100
    assert found.items() >= attributes.items()
    with pytest.raises(ValueError, match=f"it has {most + 1} attributes"):
        replayed_attributes(replace(WHOLE, attributes=attributes | added, identity=""), forced=forced)
