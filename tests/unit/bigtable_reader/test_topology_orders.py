"""How pieces are ended, put together and reconciled, in any order at all."""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.bigtable_reader.core.stream.partitions import Piece
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


def _has_readable(machine: "Pieces") -> bool:
    return any(piece.is_readable for piece in machine.topology.pieces)


class Pieces(RuleBasedStateMachine):
    """Splits, merges, chains of both, and children lists that are partial or contradict themselves."""

    topology: KeyRangeTopology

    @initialize(cuts=st.sets(st.sampled_from(KEYS[1:])))
    def begins(self, cuts: set[bytes]) -> None:
        bounds = [b"", *sorted(cuts), b""]
        first = [KeyRange(bounds[n], bounds[n + 1]) for n in range(len(bounds) - 1)]
        self.topology = begin(first, life="x", start=NOON, floor=1)
        self.server: list[KeyRange] = list(first)
        self.floors: Mapping[bytes, int] = {}
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
        piece = self.readable(data)
        children = []
        for partition in self.server:
            part = _common(partition, piece.range)
            if part is not None:
                children.append(Child(RangeToken(part, "true"), partition))
        self.close(piece, children, data.draw(st.integers(0, 1_000)))

    @precondition(_has_readable)
    @rule(data=st.data(), children=wild_children, left_out=st.booleans())
    def closes_with_children_that_make_no_sense(
        self, data: st.DataObject, children: list[Child], left_out: bool
    ) -> None:
        piece = self.readable(data)
        if left_out:
            children = [one for one in children if _common(one.token.range, piece.range) == one.token.range]
        self.close(piece, children, data.draw(st.integers(0, 1_000)))

    @rule(data=st.data())
    def reconciles_some(self, data: st.DataObject) -> None:
        waiting = [piece.id for piece in self.topology.pieces if not piece.is_readable]
        some = data.draw(st.sets(st.sampled_from(waiting))) if waiting else set()
        before = len(waiting)
        reconciled = reconcile(self.topology, dict.fromkeys(some, TIMEOUT.token), TIMEOUT, LONG_AGO)
        assert (reconciled is None) == (not some)
        if reconciled is not None:
            self.become(reconciled.topology)
            assert sum(not piece.is_readable for piece in self.topology.pieces) == before - len(some)

    @precondition(_has_readable)
    @rule()
    def all_comes_together_when_the_server_is_quiet(self) -> None:
        """Nothing waits for ever: whatever happened, reading and reconciling ends at the server's own partitions."""
        for _round in range(4):
            for piece in list(self.topology.pieces):
                if piece.is_readable and piece.range not in self.server:
                    found = [(one, _common(one, piece.range)) for one in self.server]
                    named = [Child(RangeToken(part, "true"), one) for one, part in found if part is not None]
                    self.close(piece, named, 0)
            waited = {piece.id: TIMEOUT.token for piece in self.topology.pieces if not piece.is_readable}
            reconciled = reconcile(self.topology, waited, TIMEOUT, LONG_AGO)
            if reconciled is not None:
                self.become(reconciled.topology)
        assert [piece.range for piece in self.topology.pieces] == sorted(self.server)
        assert all(piece.is_readable for piece in self.topology.pieces)

    def readable(self, data: st.DataObject) -> Piece:
        found = [piece for piece in self.topology.pieces if piece.is_readable]
        return data.draw(st.sampled_from(found))

    def close(self, piece: Piece, children: list[Child], ceiling: int) -> None:
        cut = successors(piece.range, children)
        ended = end(self.topology, piece.id, Ending(cut, ceiling, Microseconds(piece.low_watermark + 1)))
        if ended is None:
            return
        for key in KEYS:
            if key in piece.range:
                found = [one for one in ended.topology.pieces if key in one.range]
                assert [one.floor for one in found] == [max(piece.floor, ceiling)]
        self.become(ended.topology)
        merged = merge(self.topology)
        if merged is not None:
            self.become(merged.topology)
            assert merge(merged.topology) is None

    def become(self, topology: KeyRangeTopology) -> None:
        assert topology.version > self.topology.version
        self.topology = topology

    @invariant()
    def every_key_is_in_one_piece_its_floor_never_falls_and_its_token_is_its_own(self) -> None:
        floors = {}
        for key in KEYS:
            (piece,) = [one for one in self.topology.pieces if key in one.range]
            floors[key] = piece.floor
            assert piece.floor >= self.floors.get(key, 0)
            if piece.position is not None and piece.position.tokens:
                assert sum(key in token.range for token in piece.position.tokens) == 1
            if piece.target is not None:
                assert key in piece.target
        self.floors = floors

    @invariant()
    def tokens_are_for_keys_of_their_piece_only(self) -> None:
        for piece in self.topology.pieces:
            tokens = () if piece.position is None else piece.position.tokens
            for key in KEYS:
                if any(key in token.range for token in tokens):
                    assert key in piece.range

    @invariant()
    def a_name_is_one_pieces_for_ever(self) -> None:
        for piece in self.topology.pieces:
            assert self.names.setdefault(piece.id, piece.range) == piece.range


def _common(one: KeyRange, other: KeyRange) -> KeyRange | None:
    start = max(one.start, other.start)
    ends = [until for until in (one.end, other.end) if until]
    until = min(ends, default=b"")
    return None if until and start >= until else KeyRange(start, until)


TestPieces = Pieces.TestCase
TestPieces.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)
