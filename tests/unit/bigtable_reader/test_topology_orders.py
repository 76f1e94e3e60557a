"""How key ranges are ended, put together and reconciled, in any order at all."""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.bigtable_reader.core.stream.partitions import StreamRange
from services.bigtable_reader.core.stream.records import Child, KeyRange, Microseconds, RangeToken
from services.bigtable_reader.core.stream.topology import (
    Ending,
    KeyRangeTopology,
    MergeTimeouts,
    begin,
    end,
    merge,
    reconcile,
    successors,
)
from tests.seeds import examples

NOON = Microseconds(1_700_000_000_000_000)
LONG_AGO = Microseconds(0)
TIMEOUT = MergeTimeouts()
KEYS = [b"", b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
"""Where ranges begin and end; each is also the first key of a part of the key space that is never cut."""


@st.composite
def ranges(draw: st.DrawFn) -> KeyRange:
    first, last = sorted(draw(st.lists(st.integers(0, len(KEYS)), min_size=2, max_size=2, unique=True)))
    return KeyRange(KEYS[first], KEYS[last] if last < len(KEYS) else b"")


wild_children = st.lists(st.builds(Child, st.builds(RangeToken, ranges(), st.just("wild")), ranges()), max_size=5)


def _has_readable(machine: "StreamRanges") -> bool:
    return any(stream_range.is_readable for stream_range in machine.topology.stream_ranges)


class StreamRanges(RuleBasedStateMachine):
    """Splits, merges, chains of both, and children lists that are partial or contradict themselves."""

    topology: KeyRangeTopology

    @initialize(cuts=st.sets(st.sampled_from(KEYS[1:])))
    def begins(self, cuts: set[bytes]) -> None:
        bounds = [b"", *sorted(cuts), b""]
        first = [KeyRange(bounds[n], bounds[n + 1]) for n in range(len(bounds) - 1)]
        self.topology = begin(first, life="x", start=NOON, min_version=1)
        self.server: list[KeyRange] = list(first)
        self.min_versions: Mapping[bytes, int] = {}
        self.names: dict[str, KeyRange] = {}

    @rule(cut=st.sampled_from(KEYS[1:]))
    def server_splits(self, cut: bytes) -> None:
        (found,) = [one for one in self.server if cut in one]
        if found.start == cut:  # a partition begins there already
            return
        self.server.remove(found)
        self.server += [KeyRange(found.start, cut), KeyRange(cut, found.end)]

    @rule(cut=st.sampled_from(KEYS[1:]))
    def server_merges(self, cut: bytes) -> None:
        right = [one for one in self.server if one.start == cut]
        if not right:  # no partition begins there
            return
        (left,) = [one for one in self.server if one.end == cut]
        self.server = [one for one in self.server if one not in (left, right[0])]
        self.server.append(KeyRange(left.start, right[0].end))

    @precondition(_has_readable)
    @rule(data=st.data())
    def closes_as_the_server_says(self, data: st.DataObject) -> None:
        """What is read is told what is true now; if it is a partition still, it is only moved."""
        stream_range = self.readable(data)
        children = []
        for partition in self.server:
            part = _common(partition, stream_range.range)
            if part is not None:
                children.append(Child(RangeToken(part, "true"), partition))
        self.close(stream_range, children, data.draw(st.integers(0, 1_000)))

    @precondition(_has_readable)
    @rule(data=st.data(), children=wild_children, left_out=st.booleans())
    def closes_with_children_that_make_no_sense(
        self, data: st.DataObject, children: list[Child], left_out: bool
    ) -> None:
        stream_range = self.readable(data)
        if left_out:
            children = [one for one in children if _common(one.token.range, stream_range.range) == one.token.range]
        self.close(stream_range, children, data.draw(st.integers(0, 1_000)))

    @rule(data=st.data())
    def reconciles_some(self, data: st.DataObject) -> None:
        waiting = [stream_range.id for stream_range in self.topology.stream_ranges if not stream_range.is_readable]
        some = data.draw(st.sets(st.sampled_from(waiting))) if waiting else set()
        before = len(waiting)
        reconciled = reconcile(self.topology, dict.fromkeys(some, TIMEOUT.token), TIMEOUT, LONG_AGO)
        assert (reconciled is None) == (not some)
        if reconciled is not None:
            self.become(reconciled.topology)
            assert sum(not stream_range.is_readable for stream_range in self.topology.stream_ranges) == before - len(
                some
            )

    @precondition(_has_readable)
    @rule()
    def all_comes_together_when_the_server_is_quiet(self) -> None:
        """Nothing waits for ever: whatever happened, reading and reconciling ends at the server's own partitions."""
        for _round in range(4):
            for stream_range in list(self.topology.stream_ranges):
                if stream_range.is_readable and stream_range.range not in self.server:
                    found = [(one, _common(one, stream_range.range)) for one in self.server]
                    named = [Child(RangeToken(part, "true"), one) for one, part in found if part is not None]
                    self.close(stream_range, named, 0)
            waited = {
                stream_range.id: TIMEOUT.token
                for stream_range in self.topology.stream_ranges
                if not stream_range.is_readable
            }
            reconciled = reconcile(self.topology, waited, TIMEOUT, LONG_AGO)
            if reconciled is not None:
                self.become(reconciled.topology)
        assert [stream_range.range for stream_range in self.topology.stream_ranges] == sorted(self.server)
        assert all(stream_range.is_readable for stream_range in self.topology.stream_ranges)

    def readable(self, data: st.DataObject) -> StreamRange:
        found = [stream_range for stream_range in self.topology.stream_ranges if stream_range.is_readable]
        return data.draw(st.sampled_from(found))

    def close(self, stream_range: StreamRange, children: list[Child], reserved_up_to: int) -> None:
        cut = successors(stream_range.range, children)
        ended = end(
            self.topology, stream_range.id, Ending(cut, reserved_up_to, Microseconds(stream_range.low_watermark + 1))
        )
        if ended is None:
            return
        for key in KEYS:
            if key in stream_range.range:
                found = [one for one in ended.topology.stream_ranges if key in one.range]
                assert [one.min_version for one in found] == [max(stream_range.min_version, reserved_up_to)]
        self.become(ended.topology)
        merged = merge(self.topology)
        if merged is not None:
            self.become(merged.topology)
            assert merge(merged.topology) is None

    def become(self, topology: KeyRangeTopology) -> None:
        assert topology.version > self.topology.version
        self.topology = topology

    @invariant()
    def every_key_is_in_one_stream_range_its_min_version_never_falls_and_its_token_is_its_own(self) -> None:
        min_versions = {}
        for key in KEYS:
            (stream_range,) = [one for one in self.topology.stream_ranges if key in one.range]
            min_versions[key] = stream_range.min_version
            assert stream_range.min_version >= self.min_versions.get(key, 0)
            if stream_range.position is not None and stream_range.position.tokens:
                assert sum(key in token.range for token in stream_range.position.tokens) == 1
            if stream_range.target is not None:
                assert key in stream_range.target
        self.min_versions = min_versions

    @invariant()
    def tokens_are_for_keys_of_their_stream_range_only(self) -> None:
        for stream_range in self.topology.stream_ranges:
            tokens = () if stream_range.position is None else stream_range.position.tokens
            for key in KEYS:
                if any(key in token.range for token in tokens):
                    assert key in stream_range.range

    @invariant()
    def a_name_is_one_stream_ranges_for_ever(self) -> None:
        for stream_range in self.topology.stream_ranges:
            assert self.names.setdefault(stream_range.id, stream_range.range) == stream_range.range


def _common(one: KeyRange, other: KeyRange) -> KeyRange | None:
    start = max(one.start, other.start)
    ends = [until for until in (one.end, other.end) if until]
    until = min(ends, default=b"")
    return None if until and start >= until else KeyRange(start, until)


TestStreamRanges = StreamRanges.TestCase
TestStreamRanges.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)
