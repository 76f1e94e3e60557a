"""What a replay would do with each dead letter."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dead_letter.core.dead_letters import ReplayId, State, StoredDeadLetter
from services.dead_letter.core.plan import PlannedReplay, Terms, Verdict, is_newer, judge
from services.dead_letter.core.rows import DeadLetterContent, RowOf, content_of
from shared.contracts.change_batch import Change, Header, Op, encode_batch
from shared.contracts.change_batch import Content as WireContent
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.safe_age import SAFE_AGE
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.builders import COMMITTED, a_change, a_header
from tests.unit.dead_letter.dead_letters import NOW, a_dead_letter, junk, stored

COMMIT = parse_timestamp(COMMITTED)
LATE = Nanoseconds(COMMIT // 1_000 * 1_000 + SAFE_AGE // timedelta(microseconds=1) * 1_000 + 1_000)
TERMS = Terms(replay=ReplayId("ours"), max_replays=3)
ROW = RowOf(
    "//spanner.googleapis.com/projects/p/instances/i/databases/d/tables/planes",
    ("id",),
    "[1]",
)


def header_of(content: WireContent) -> Header:
    return msgspec.structs.replace(a_header(), content=content, format=2)


def committed(at: str, op: Op = "UPSERT") -> Change:
    return msgspec.structs.replace(a_change(op=op), commit_timestamp=at)


def judged(
    kept: StoredDeadLetter, applied: int | None = None, now: Nanoseconds = NOW, terms: Terms = TERMS
) -> PlannedReplay:
    sequences = {} if applied is None else {ROW: str(four_sections(applied))}
    return judge(kept, content_of(kept.dead_letter), sequences, now, terms)


def test_a_dead_letter_reports_of_which_row_it_is_and_how_old() -> None:
    assert content_of(a_dead_letter()) == DeadLetterContent(ROW, str(four_sections(1)), COMMIT // 1_000)
    assert content_of(a_dead_letter(a_change(op="DELETE"))) == DeadLetterContent(ROW, str(four_sections(1)), None)


@pytest.mark.parametrize("content", ["changes", "images"])
def test_a_whole_message_is_of_no_one_row_and_as_old_as_its_oldest_upsert(content: WireContent) -> None:
    header = header_of(content)
    old, new = "2020-01-01T00:00:00Z", COMMITTED
    changes = [committed(new), committed(old), committed("1999-01-01T00:00:00Z", op="DELETE")]
    dead_letter = a_dead_letter(data=encode_batch(header, changes), sequence="", key="")

    assert content_of(dead_letter) == DeadLetterContent(None, "", parse_timestamp(old) // 1_000)


def test_a_message_of_one_change_that_was_not_applied_in_time_is_superseded_like_any_other() -> None:
    forwarded = a_dead_letter(a_change(sequence=5), sequence="", key="", reason=Reason.NOT_APPLIED_IN_TIME)
    assert judged(stored(forwarded), 6).verdict is Verdict.SUPERSEDED
    assert judged(stored(forwarded), 5).verdict is Verdict.SEND


def test_entries_of_a_change_log_are_neither_superseded_nor_too_old() -> None:
    assert content_of(a_dead_letter(header=header_of("entries"))) == DeadLetterContent()


def test_what_cannot_be_read_is_sent_as_it_is() -> None:
    assert content_of(junk()) == DeadLetterContent(understood=False)
    assert judged(stored(junk()), now=Nanoseconds(LATE * 2)).verdict is Verdict.SEND


def test_of_what_is_not_understood_it_is_reported_that_it_comes_back() -> None:
    assert "comes back, and is to be discarded, unless the consumer is newer" in judged(stored(junk())).why
    assert judged(stored()).why == ""


def test_a_dead_letter_is_sent_unless_something_speaks_against_it() -> None:
    assert judged(stored()) == PlannedReplay(stored(), Verdict.SEND)


@pytest.mark.parametrize(("applied", "verdict"), [(6, Verdict.SUPERSEDED), (5, Verdict.SEND), (4, Verdict.SEND)])
def test_a_dead_letter_is_superseded_by_what_is_newer_only(applied: int, verdict: Verdict) -> None:
    planned = judged(stored(a_dead_letter(a_change(sequence=5))), applied)
    assert planned.verdict is verdict
    assert (str(four_sections(applied)) in planned.why) == (verdict is Verdict.SUPERSEDED)


@pytest.mark.parametrize(("now", "verdict"), [(Nanoseconds(LATE - 1_000), Verdict.SEND), (LATE, Verdict.TOO_OLD)])
def test_an_upsert_is_too_old_at_the_moment_at_which_the_consumer_finds_so(now: Nanoseconds, verdict: Verdict) -> None:
    planned = judged(stored(), now=now)
    assert planned.verdict is verdict
    assert ("46 hours" in planned.why) == (verdict is Verdict.TOO_OLD)


def test_a_delete_is_never_too_old_and_a_forced_upsert_neither() -> None:
    assert judged(stored(a_dead_letter(a_change(op="DELETE"))), now=LATE).verdict is Verdict.SEND
    assert judged(stored(), now=LATE, terms=replace(TERMS, force=True)).verdict is Verdict.SEND


@pytest.mark.parametrize(
    ("dead_letter", "now", "forced"),
    [
        (a_dead_letter(), NOW, False),
        (a_dead_letter(), LATE, True),
        (a_dead_letter(), Nanoseconds(LATE - 3_599 * 1_000_000_000), True),
        (a_dead_letter(), Nanoseconds(LATE - 3_601 * 1_000_000_000), False),
        (a_dead_letter(a_change(op="DELETE")), LATE, False),
        (junk(), NOW, True),
    ],
    ids=["new", "too old", "too old in an hour", "not so in an hour", "a delete", "not understood"],
)
def test_only_what_needs_it_is_marked_as_forced(dead_letter: DeadLetter, now: Nanoseconds, forced: bool) -> None:
    assert judged(stored(dead_letter), now=now, terms=replace(TERMS, force=True)).forced is forced
    assert not judged(stored(dead_letter), now=now).forced


@pytest.mark.parametrize(
    ("mode", "verdict"), [("mirror", Verdict.TOO_OLD), ("both", Verdict.TOO_OLD), ("history", Verdict.SEND)]
)
def test_an_old_upsert_for_a_history_alone_overwrites_nothing_and_is_sent(mode: str, verdict: Verdict) -> None:
    terms = replace(TERMS, tables=read_tables_file(f'[tables."planes"]\nmode = "{mode}"'))
    assert judged(stored(), now=LATE, terms=terms).verdict is verdict
    assert not judged(stored(), now=LATE, terms=replace(terms, force=True)).forced or mode != "history"


@pytest.mark.parametrize("most", [99, 100])
def test_a_foreign_message_without_room_for_the_marks_of_a_replay_loses_nothing_but_is_not_sent(most: int) -> None:
    planned = judged(stored(junk(attributes={f"a{n}": "v" for n in range(most)})))
    assert planned.verdict is (Verdict.SEND if most == 99 else Verdict.NO_ROOM)
    assert ("publish it again yourself" in planned.why) is (most == 100)
    forced = judged(stored(junk(attributes={f"a{n}": "v" for n in range(most)})), terms=replace(TERMS, force=True))
    assert forced.verdict is Verdict.NO_ROOM


@pytest.mark.parametrize(
    ("terms", "verdict"),
    [(TERMS, Verdict.WAITS), (replace(TERMS, named=True), Verdict.SEND), (replace(TERMS, force=True), Verdict.SEND)],
)
def test_a_dead_letter_replayed_in_vain_so_often_waits_for_a_person(terms: Terms, verdict: Verdict) -> None:
    assert judged(stored(replays=2)).verdict is Verdict.SEND
    assert judged(stored(replays=3), terms=terms).verdict is verdict


def test_a_dead_letter_without_its_bytes_cannot_be_sent_and_reports_the_fix() -> None:
    dead_letter = stored(a_dead_letter(data=b'{"id":"1"}', payload_bytes=11_000_000))
    planned = judged(dead_letter, terms=replace(TERMS, force=True, named=True))
    assert planned.verdict is Verdict.NO_PAYLOAD
    assert "write the row once more at its source" in planned.why


@pytest.mark.parametrize(
    ("holder", "until", "verdict"),
    [("other", NOW + 1, Verdict.CLAIMED), ("other", NOW, Verdict.SEND), ("ours", NOW + 1, Verdict.SEND)],
)
def test_a_dead_letter_of_another_replay_is_its_until_its_claim_ends(holder: str, until: int, verdict: Verdict) -> None:
    dead_letter = stored(claimed_by=ReplayId(holder), claimed_until=Nanoseconds(until))
    assert judged(dead_letter, terms=replace(TERMS, force=True)).verdict is verdict


@pytest.mark.parametrize("state", [state for state in State if state is not State.OPEN])
def test_only_open_dead_letters_are_sent(state: State) -> None:
    planned = judged(stored(state=state), terms=replace(TERMS, force=True, named=True))
    assert planned.verdict is Verdict.NOT_OPEN
    assert "restore" in planned.why


dead_letters = st.builds(
    lambda sequence, op, state, replays, holder, until, lost: stored(
        a_dead_letter(a_change(sequence=sequence, op=op), payload_bytes=9 if lost else None),
        state=state,
        replays=replays,
        claimed_by=holder,
        claimed_until=Nanoseconds(until),
    ),
    st.integers(0, 5),
    st.sampled_from(["UPSERT", "DELETE"]),
    st.sampled_from([*State, *([State.OPEN] * 5)]),
    st.integers(0, 5),
    st.sampled_from([None, None, ReplayId("ours"), ReplayId("other")]),
    st.integers(int(NOW) - 1, int(NOW) + 1),
    st.booleans(),
)
times = st.sampled_from([NOW, LATE])


@given(dead_letters, st.none() | st.integers(0, 5), times, st.booleans(), st.booleans())
def test_what_is_sent_is_open_whole_free_and_nothing_newer_is_applied(
    kept: StoredDeadLetter, applied: int | None, now: Nanoseconds, named: bool, force: bool
) -> None:
    terms = Terms(replay=ReplayId("ours"), max_replays=3, named=named, force=force)
    planned = judged(kept, applied, now, terms)

    assert (planned.why == "") == (planned.verdict is Verdict.SEND)
    if planned.verdict is Verdict.SEND:
        assert kept.state is State.OPEN
        assert not kept.without_payload
        assert kept.claimed_by != "other" or (kept.claimed_until or 0) <= now
        assert applied is None or str(four_sections(applied)) <= kept.dead_letter.sequence
        assert named or force or kept.replays < 3
        assert force or now < LATE or b"DELETE" in kept.dead_letter.data


@given(dead_letters, st.none() | st.integers(0, 5), times, st.booleans())
def test_force_changes_only_what_is_too_old_or_waits(
    kept: StoredDeadLetter, applied: int | None, now: Nanoseconds, named: bool
) -> None:
    terms = replace(TERMS, named=named)
    plain = judged(kept, applied, now, terms)
    forced = judged(kept, applied, now, replace(terms, force=True))
    if plain.verdict in (Verdict.TOO_OLD, Verdict.WAITS):
        assert forced.verdict is Verdict.SEND
    else:
        assert forced == plain


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_of_two_sequences_of_ours_the_larger_is_newer(one: list[int], other: list[int]) -> None:
    assert is_newer(str(four_sections(*one)), str(four_sections(*other))) == (one > other)


@pytest.mark.parametrize(("one", "other"), [("A", "A/0"), ("A/1", "A"), ("", "A"), ("x", "A"), ("B", "")])
def test_what_cannot_be_compared_supersedes_nothing(one: str, other: str) -> None:
    assert not is_newer(one, other)
