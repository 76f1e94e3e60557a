"""How key ranges are ended, put together and reconciled, case by case."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from services.bigtable_reader.core.stream import topology as module
from services.bigtable_reader.core.stream.partitions import StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import ALL_KEYS, Child, KeyRange, Microseconds, Position, RangeToken
from services.bigtable_reader.core.stream.topology import (
    Ending,
    KeyRangeTopology,
    MergeTimeouts,
    Successor,
    begin,
    end,
    merge,
    partition_around,
    reconcile,
    restart,
    settle,
    successors,
)

SECOND = 1_000_000
MINUTE = 60 * SECOND
NOON = Microseconds(1_700_000_000 * SECOND)
LONG_AGO = Microseconds(0)
TIMEOUT = MergeTimeouts()


def us(time: int) -> Microseconds:
    return Microseconds(time)


def span(start: str, until: str) -> KeyRange:
    return KeyRange(start.encode(), until.encode())


def child(part: str, partition: str | None = None, named: str = "t") -> Child:
    """``part`` and ``partition`` as `a-c`: from a up to c."""
    return Child(RangeToken(span(*part.split("-")), named), span(*(partition or part).split("-")))


def begun(*ranges: str) -> KeyRangeTopology:
    return begin([span(*one.split("-")) for one in ranges], life="x", start=NOON, min_version=5)


def at(topology: KeyRangeTopology, key: str) -> StreamRange:
    (stream_range,) = [stream_range for stream_range in topology.stream_ranges if key.encode() in stream_range.range]
    return stream_range


def closed(
    topology: KeyRangeTopology, key: str, *children: Child, reserved_up_to: int = 100, read: int = 0
) -> KeyRangeTopology:
    """End the key range that holds a key, and put together what is complete."""
    stream_range = at(topology, key)
    ended = end(
        topology,
        stream_range.id,
        Ending(successors(stream_range.range, children), reserved_up_to, us(stream_range.low_watermark + read)),
    )
    assert ended is not None
    merged = merge(ended.topology)
    return ended.topology if merged is None else merged.topology


def shape(topology: KeyRangeTopology) -> list[str]:
    """Return each key range as `range tokens -> target`."""
    return [_shown(p.range, () if p.position is None else p.position.tokens, p.target) for p in topology.stream_ranges]


def parts(whole: str, *children: Child) -> list[str]:
    return [_shown(one.range, one.tokens, one.target) for one in successors(span(*whole.split("-")), children)]


def _shown(range_: KeyRange, tokens: Sequence[RangeToken], target: KeyRange | None) -> str:
    named = ",".join(_span(token.range) for token in tokens)
    return f"{_span(range_)}:{named}" + ("" if target is None else f" -> {_span(target)}")


def _span(range_: KeyRange) -> str:
    return f"{range_.start.decode()}-{range_.end.decode()}"


# What a key range is cut into


def test_a_split_is_read_at_once_in_its_parts() -> None:
    assert parts("a-d", child("a-b"), child("b-d")) == ["a-b:a-b", "b-d:b-d"]


def test_a_move_is_the_same_range_with_another_token() -> None:
    assert parts("a-d", child("a-d")) == ["a-d:a-d"]


def test_a_merge_waits_for_what_it_lacks() -> None:
    assert parts("a-d", child("a-d", "a-f")) == ["a-d:a-d -> a-f"]


def test_merged_and_split_at_once_the_part_that_is_complete_is_read_and_the_other_waits() -> None:
    assert parts("b-d", child("b-c", "a-c"), child("c-d")) == ["b-c:b-c -> a-c", "c-d:c-d"]


def test_several_tokens_of_one_partition_are_read_as_one() -> None:
    assert parts("a-d", child("a-b", "a-d"), child("b-d", "a-d")) == ["a-d:a-b,b-d"]


def test_keys_that_no_child_names_are_a_part_without_a_token() -> None:
    assert parts("a-g", child("b-c"), child("d-e")) == ["a-b:", "b-c:b-c", "c-d:", "d-e:d-e", "e-g:"]
    assert parts("-", child("b-c")) == ["-b:", "b-c:b-c", "c-:"]


def test_a_partition_inside_that_its_tokens_do_not_cover_waits() -> None:
    assert parts("a-d", child("a-b", "a-d")) == ["a-b:a-b -> a-d", "b-d:"]


@pytest.mark.parametrize(
    ("children", "cut"),
    [
        ([child("a-e")], ["b-d:"]),  # reaches beyond the key range: a token is for its range as it is
        ([child("e-g")], ["b-d:"]),
        ([child("b-d"), child("c-d")], ["b-d:b-d"]),  # twice the same keys
        ([child("b-c"), child("b-d")], ["b-c:b-c", "c-d:"]),
        ([child("b-d", "e-g")], ["b-d:b-d"]),  # a partition that the token is no part of
        ([], ["b-d:"]),
    ],
)
def test_what_contradicts_itself_is_still_cut_into_the_whole(children: list[Child], cut: list[str]) -> None:
    assert parts("b-d", *children) == cut


# Ends


def test_children_begin_above_the_reserved_limit_and_at_the_watermark_of_their_parent() -> None:
    before = begun("-c", "c-")
    after = closed(before, "a", child("-b"), child("b-c"), reserved_up_to=70, read=MINUTE)
    assert [(p.min_version, p.low_watermark) for p in after.stream_ranges] == [
        (70, NOON + MINUTE),
        (70, NOON + MINUTE),
        (5, NOON),
    ]


def test_a_min_version_does_not_fall_with_a_lower_reserved_limit() -> None:
    assert at(closed(begun("-"), "a", child("-"), reserved_up_to=1), "a").min_version == 5


def test_an_end_that_was_rolled_forward_already_changes_nothing() -> None:
    before = begun("-c", "c-")
    name = at(before, "a").id
    after = closed(before, "a", child("-b"), child("b-c"))
    assert end(after, name, Ending((Successor(span("", "c")),), 1, NOON)) is None


def test_names_are_never_used_twice_though_a_range_comes_back() -> None:
    topology = begun("-c", "c-")
    names = {stream_range.id for stream_range in topology.stream_ranges}
    for children in [[child("-b"), child("b-c")], [child("-b", "-c")]]:
        topology = closed(topology, "a", *children)
    topology = closed(topology, "b", child("b-c", "-c"))
    assert shape(topology) == ["-c:-b,b-c", "c-:"]
    assert at(topology, "a").id not in names
    assert at(topology, "c").id in names


def test_splits_are_counted_once_and_a_merge_is_none() -> None:
    topology = begun("-")
    stream_range = topology.stream_ranges[0]

    def split(*children: Child) -> int:
        ended = end(topology, stream_range.id, Ending(successors(stream_range.range, children), 1, NOON))
        assert ended is not None
        return ended.split

    assert split(child("-b"), child("b-")) == 1
    assert split(child("-")) == 0
    assert split(child("-b")) == 0


# Merges


def test_a_merged_partition_begins_when_all_of_it_is_there() -> None:
    topology = begun("-b", "b-d", "d-")
    topology = closed(topology, "a", child("-b", "-d", "one"), reserved_up_to=70, read=2 * MINUTE)
    assert shape(topology)[0] == "-b:-b -> -d"
    topology = closed(topology, "b", child("b-d", "-d", "two"), reserved_up_to=60, read=MINUTE)
    merged = at(topology, "c")
    assert merged.range == span("", "d")
    assert merged.position == Position((RangeToken(span("", "b"), "one"), RangeToken(span("b", "d"), "two")))
    assert (merged.min_version, merged.low_watermark) == (
        70,
        NOON + MINUTE,
    )  # above all versions, behind all that is read
    assert merged.is_readable


def test_a_merge_whose_other_half_was_split_again_waits_until_it_is_reconciled() -> None:
    topology = begun("-b", "b-d", "d-")
    topology = closed(topology, "a", child("-b", "-d"))
    topology = closed(topology, "b", child("b-c", "-c"), child("c-d"))  # never hears of -d
    assert shape(topology) == ["-b:-b -> -d", "b-c:b-c -> -c", "c-d:c-d", "d-:"]

    waited = {at(topology, "a").id: TIMEOUT.merge, at(topology, "b").id: TIMEOUT.merge - timedelta(seconds=1)}
    reconciled = reconcile(topology, waited, TIMEOUT, LONG_AGO)
    assert reconciled is not None
    assert reconciled.reconciled == 1
    topology = reconciled.topology
    assert at(topology, "a").is_readable
    assert at(topology, "a").reconciled
    topology = closed(topology, "a", child("-b", "-c"))  # what is true now
    assert shape(topology) == ["-c:-b,b-c", "c-d:c-d", "d-:"]


def test_what_has_no_token_is_no_part_of_a_merge() -> None:
    topology = begun("-b", "b-")
    topology = closed(topology, "a", child("-a", "-"))
    topology = closed(topology, "b", child("b-", "-"))
    assert shape(topology) == ["-a:-a -> -", "a-b:", "b-:b- -> -"]


# Reconciling


def test_what_has_no_token_is_read_from_before_its_watermark_after_longer() -> None:
    topology = closed(begun("-"), "a", child("-b"), read=90 * MINUTE)
    lost = at(topology, "b")
    assert reconcile(topology, {lost.id: TIMEOUT.merge}, TIMEOUT, LONG_AGO) is None
    reconciled = reconcile(topology, {lost.id: TIMEOUT.token}, TIMEOUT, LONG_AGO)
    assert reconciled is not None
    assert at(reconciled.topology, "b").position == Position(start=us(NOON + 30 * MINUTE))
    assert at(reconciled.topology, "b").is_readable
    assert at(reconciled.topology, "b").min_version == lost.min_version


@pytest.mark.parametrize(
    ("read", "kept_since", "start"),
    [
        (90, -1000, 30),
        (30, -1000, 0),  # never before the stream began
        (90, 40, 45),  # never before what is kept; what is just about to go may be gone
        (90, 88, 90),
    ],
)
def test_a_restart_goes_back_by_the_allowance_as_far_as_there_is_something(
    read: int, kept_since: int, start: int
) -> None:
    topology = begun("-")
    found = restart(topology, us(NOON + read * MINUTE), TIMEOUT, us(NOON + kept_since * MINUTE))
    assert found == NOON + start * MINUTE


def test_a_restart_that_would_lose_changes_is_refused() -> None:
    with pytest.raises(ValueError, match="kept since"):
        restart(begun("-"), us(NOON + MINUTE), TIMEOUT, us(NOON + 2 * MINUTE))


@pytest.mark.parametrize(
    ("part", "partitions", "around"),
    [
        ("a-b", ["-a", "a-c", "c-"], "a-c"),
        ("a-b", ["-"], "-"),
        ("a-c", ["-a", "a-c", "c-"], None),  # it is one
        ("a-c", ["-a", "a-b", "b-c", "c-"], None),  # it is several
        ("a-c", ["-b", "b-"], None),  # it is parts of two
    ],
)
def test_what_is_only_a_part_of_a_present_partition_is_reported(
    part: str, partitions: list[str], around: str | None
) -> None:
    found = partition_around(span(*part.split("-")), [span(*one.split("-")) for one in partitions])
    assert found == (None if around is None else span(*around.split("-")))


def test_what_is_reconciled_again_is_counted() -> None:
    topology = begun("-")
    stream_range = topology.stream_ranges[0]
    parts = (Successor(span("", "b"), (RangeToken(span("", "b"), "t"),), ALL_KEYS, 2), Successor(span("b", "")))
    ended = end(topology, stream_range.id, Ending(parts, 9, NOON))
    assert ended is not None
    waited = dict.fromkeys(ended.topology.names, TIMEOUT.merge)
    reconciled = reconcile(ended.topology, waited, TIMEOUT, LONG_AGO)
    assert reconciled is not None
    first = reconciled.topology.stream_ranges[0]
    assert (first.reconciled, first.again, first.target) == (True, 2, None)


# Many at once


def many(number: int) -> KeyRangeTopology:
    bounds = [b"", *(b"%04d" % n for n in range(1, number)), b""]
    return begin([KeyRange(*two) for two in pairwise(bounds)], life="x", start=NOON, min_version=5)


def test_endings_merges_and_reconciling_of_many_stream_ranges_check_the_whole_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = many(100)
    endings = {}
    for number, stream_range in enumerate(before.stream_ranges[:50]):
        start, until = stream_range.range.start, stream_range.range.end
        middle = start + b"0"
        if number < 20:  # a split
            parts = [(KeyRange(start, middle), KeyRange(start, middle)), (KeyRange(middle, until), None)]
        elif number < 40:  # half of a merge, both of which are here
            target = KeyRange(b"%04d" % (number // 2 * 2), b"%04d" % (number // 2 * 2 + 2))
            parts = [(stream_range.range, target)]
        else:  # a merge that lacks the rest
            parts = [(stream_range.range, KeyRange(b"0040", b""))]
        children = [Child(RangeToken(part, "t"), partition or part) for part, partition in parts]
        endings[stream_range.id] = Ending(successors(stream_range.range, children), 9, NOON)
    checked: list[StreamRangeId] = []
    check = module._check

    def counting(stream_range: StreamRange) -> None:
        checked.append(stream_range.id)
        check(stream_range)

    monkeypatch.setattr(module, "_check", counting)

    settled = settle(before, endings)

    assert settled is not None
    assert (settled.split, settled.merged, len(settled.topology.stream_ranges)) == (20, 10, 40 + 10 + 10 + 50)
    assert len(checked) == len(settled.topology.stream_ranges)
    assert settle(settled.topology, endings) is None

    checked.clear()
    reconciled = reconcile(settled.topology, dict.fromkeys(settled.topology.names, TIMEOUT.token), TIMEOUT, LONG_AGO)

    assert reconciled is not None
    assert reconciled.reconciled == 10
    assert len(checked) == len(reconciled.topology.stream_ranges)


# What is no topology


@pytest.mark.parametrize("ranges", [["-b", "c-"], ["-c", "b-"], ["-b"], [], ["a-"], ["-", "-"]])
def test_ranges_that_are_not_a_whole_are_refused(ranges: list[str]) -> None:
    with pytest.raises(ValueError, match="key range"):
        begun(*ranges)


@pytest.mark.parametrize(
    ("position", "target"),
    [
        (Position((RangeToken(span("", "b"), "t"),)), None),  # not all of it
        (Position((RangeToken(span("", "b"), "t"), RangeToken(span("a", ""), "t"))), None),  # twice
        (Position((RangeToken(ALL_KEYS, "t"),)), span("a", "")),  # waits for what it is no part of
        (None, span("", "")),
    ],
)
def test_stream_ranges_whose_tokens_or_targets_are_not_theirs_are_refused(
    position: Position | None, target: KeyRange | None
) -> None:
    stream_range = StreamRange(
        id=StreamRangeId("p"), range=ALL_KEYS, position=position, min_version=0, low_watermark=NOON, target=target
    )
    with pytest.raises(ValueError, match="key range p"):
        KeyRangeTopology(life="x", version=1, start=NOON, stream_ranges=(stream_range,))
