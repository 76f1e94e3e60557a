"""Comparing a mirror with its source: exactly the planted differences are named, whatever else goes on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.adapters.spilled_rows import SpilledRows
from services.cdc_consumer.comparison import Comparison
from services.cdc_consumer.core.destinations import EVERYTHING, Plan
from services.cdc_consumer.core.equality import same_json
from services.cdc_consumer.core.row_keys import key_kinds
from services.cdc_consumer.core.source_table import Mirrored, mirrored, source_rows
from services.cdc_consumer.ports import FoundMirror
from services.cdc_consumer.reconcile import ReconcileOptions, Reconciler
from services.cdc_consumer.reconcile_command import compared
from services.cdc_consumer.reconcile_report import document, exit_code, lines
from services.cdc_consumer.second_look import Waits
from shared.contracts.change_batch import Change, encode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Done, Key
from shared.contracts.tables_file import TablesFile, read_tables_file
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.runtime.stop import Stop
from tests.source_values import COLUMNS, VALUES
from tests.unit.cdc_consumer.wire import header_of

HEADER = header_of({"id": "INT64", **COLUMNS}, table="things", origin="snapshot")
START = parse_timestamp("2026-11-22T09:00:00Z")
SECOND = 1_000_000_000
Rows = dict[int, str]
"""Row objects (JSON) by their key."""


@dataclass
class World:
    """A source, its mirror, the clock of both, and what happens to them whenever somebody waits."""

    source: Rows
    mirror: Rows
    applied: dict[int, str] = field(default_factory=dict)
    now: int = START
    batch: int = 3
    """Rows in a batch."""
    events: list[Any] = field(default_factory=list)
    """Called one by one, at each pause."""
    breaks: int = 0
    """Readings that break off."""
    published: list[tuple[int, str | None]] = field(default_factory=list)
    unpublished: Mapping[int, Exception] = field(default_factory=dict)
    """What is raised instead of publishing a row."""
    consuming: bool = True
    nulls: list[str] = field(default_factory=list)
    """Rows of the source whose keys hold NULL."""
    plan: Plan = EVERYTHING
    found: FoundMirror = field(default_factory=lambda: FoundMirror("project.dataset.things"))
    honest: bool = True

    def sequence(self, ahead: int = 0) -> str:
        """Return the sequence of what is read now."""
        return str(four_sections(self.now // 1_000 + ahead))

    # The source

    def tables(self) -> Sequence[str]:
        return [HEADER.table]

    def describe(self, table: str) -> tuple[bytes, Done]:
        assert table == HEADER.table
        return encode_batch(HEADER, []), self._done()

    def read(self, table: str, at: str | None = None) -> Iterator[bytes | Done]:
        yield encode_batch(HEADER, [])
        rows = [self._change(json.dumps({"id": str(key)}), row) for key, row in sorted(self.source.items())]
        rows += [self._change('{"id":null}', row) for row in self.nulls]
        for start in range(0, len(rows), self.batch):
            if self.breaks:
                self.breaks -= 1
                raise TransientError("UNAVAILABLE")
            yield encode_batch(HEADER, rows[start : start + self.batch])
        yield self._done(at, rows=len(rows))

    def look(self, table: str, keys: Sequence[Key]) -> tuple[Sequence[bytes], Done]:
        named = [None if key is None else int(str(key)) for (key,) in keys]
        there = [key for key in named if key in self.source]
        changes = [self._change(json.dumps({"id": str(key)}), self.source[key]) for key in there if key is not None]
        if None in named:
            changes += [self._change('{"id":null}', row) for row in self.nulls]
        if not self.honest:
            return [], self._done(rows=0, absent=0)
        return [encode_batch(HEADER, changes)], self._done(rows=len(changes), absent=len(keys) - len(changes))

    def publish(self, table: str, keys: Sequence[Key], above: str = "") -> Done:
        assert self.sequence() > above
        for (key,) in keys:
            number = int(str(key))
            if number in self.unpublished:
                raise self.unpublished[number]
            self.published.append((number, self.source.get(number)))
            if self.consuming:
                self.apply(number)
        return self._done(rows=len(keys))

    def apply(self, key: int) -> None:
        """Let what is true of a row arrive."""
        if key in self.source:
            self.mirror[key] = self.source[key]
        else:
            self.mirror.pop(key, None)
        self.applied[key] = self.sequence()

    def _done(self, at: str | None = None, rows: int = 0, absent: int = 0) -> Done:
        return Done(at or format_timestamp(Nanoseconds(self.now)), self.sequence(), rows, absent)

    def _change(self, key: str, row: str) -> Change:
        return Change("UPSERT", "SNAPSHOT", self.sequence(), "2026-11-22T09:00:00Z", "{}", key, row)

    # The mirror, which holds what the consumer makes of the very same texts

    def find(self, table: Mirrored) -> FoundMirror:
        return self.found

    def rows_of(self, table: Mirrored, keys: Sequence[int]) -> pa.Table:
        changes = [
            replace_sequence(self._change(json.dumps({"id": str(key)}), self.mirror[key]), self.applied.get(key, ""))
            for key in keys
        ]
        rows, unfit = source_rows(table, [encode_batch(HEADER, changes)], self.plan)
        assert not unfit
        place = rows.schema.get_field_index("_millrace_sequence")
        applied = [self.applied.get(key, "") for key in keys]
        return rows.set_column(place, "_millrace_sequence", pa.array(applied, pa.string()))

    def newest(self, mirror: FoundMirror) -> str:
        return max(self.applied.values(), default="")


def replace_sequence(change: Change, _sequence: str) -> Change:
    """Return a change as it is: what is applied is told apart."""
    return change


class Mirrors:
    """The mirror's side of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def find(self, table: Mirrored) -> FoundMirror:
        return self.world.find(table)

    def read(self, table: Mirrored, mirror: FoundMirror) -> Iterator[pa.Table]:
        keys = sorted(self.world.mirror, reverse=True)  # in another order than the source
        for start in range(0, len(keys), 2):
            yield self.world.rows_of(table, keys[start : start + 2])

    def look(self, table: Mirrored, mirror: FoundMirror, keys: pa.Table) -> pa.Table:
        return self.world.rows_of(table, [key for key in keys.column("id").to_pylist() if key in self.world.mirror])

    def newest(self, mirror: FoundMirror) -> str:
        return self.world.newest(mirror)


def reconciled(
    world: World, directory: Path, *, settle: int = 30, repair: bool = False, buckets: int | None = None
) -> Comparison:
    """Compare a world's table, in time that passes only where somebody waits."""

    class Clock:
        def now(self) -> Nanoseconds:
            return Nanoseconds(world.now)

    def pause(duration: timedelta) -> None:
        world.now += duration // timedelta(microseconds=1) * 1_000
        if world.events:
            world.events.pop(0)(world)

    numbers = iter(range(1_000_000))

    @contextmanager
    def spilled(table: Mirrored, wanted: int) -> Iterator[SpilledRows]:
        place = directory / f"{id(world)}-{next(numbers)}"
        with SpilledRows(place, table.schema, key_kinds(table.definition), buckets or wanted, held=200) as rows:
            if buckets:
                rows.buckets = buckets
            yield rows

    options = ReconcileOptions(settle=timedelta(seconds=settle), repair=repair)
    waits = Waits(Clock(), Stop(), pause)
    return Reconciler(
        source=world, mirrors=Mirrors(world), plan=world.plan, spilled=spilled, waits=waits, options=options
    ).reconcile(HEADER.table)


def kinds(result: Comparison) -> dict[int, str]:
    """Return how which rows differ."""
    return {json.loads(one.key)[0]: one.kind.value for one in result.differences}


def texts(rows: Mapping[int, Mapping[str, Any]]) -> Rows:
    """Return rows as JSON texts."""
    return {key: json.dumps({name: value.json for name, value in row.items()}) for key, row in rows.items()}


a_row = st.fixed_dictionaries({}, optional=VALUES)
NOTE = '{"s": "planted"}'


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_exactly_the_planted_differences_are_named_whatever_the_rows_and_however_they_are_cut(
    tmp_path: Path, data: st.DataObject
) -> None:
    rows = texts(data.draw(st.dictionaries(st.integers(-(2**63), 2**63 - 1), a_row, min_size=1, max_size=12)))
    keys = st.sets(st.sampled_from(sorted(rows)), max_size=3)
    gone, changed = data.draw(keys), data.draw(keys)
    added = {key: NOTE for key in data.draw(st.sets(st.integers(0, 50), max_size=3)) if key not in rows}
    world = World(rows, dict(rows), batch=data.draw(st.integers(1, 5)), breaks=data.draw(st.integers(0, 1)))
    for key in changed:
        world.mirror[key] = NOTE
    for key in gone:
        world.mirror.pop(key, None)
    world.mirror |= added

    result = reconciled(world, tmp_path, buckets=data.draw(st.integers(1, 7)))

    expected = dict.fromkeys(changed, "different") | dict.fromkeys(gone, "missing") | dict.fromkeys(added, "extra")
    assert kinds(result) == expected
    assert result.source_rows == len(rows)
    assert result.mirror_rows == len(world.mirror)
    assert exit_code([result]) == int(bool(expected))
    assert not result.undecided


@pytest.mark.parametrize(
    ("column", "source", "mirror", "same"),
    [
        ("f", "NaN", "NaN", True),
        ("f", "Infinity", "-Infinity", False),
        ("af", ["NaN", 1.5], ["NaN", 1.5], True),
        ("g", 1.1, 1.100000023841858, True),
        ("n", "1.50", "1.5", True),
        ("an", ["1.50", "2"], ["1.5", "2.000"], True),
        ("an", ["1.50", "2"], ["2", "1.50"], False),
        ("t", "2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:00.123456Z", True),
        ("t", "2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:00.123457Z", False),
        ("j", '{"a": 1, "b": [1.0, true]}', '{"b":[1,true],"a":1}', True),
        ("j", '{"a": 1}', '{"a": true}', False),
        ("aj", ['{"a": 1}', "[]"], ['{"a":1.0}', "[ ]"], True),
        ("ai", None, [], True),
        ("ai", ["1"], ["1", "1"], False),
        ("s", None, "", False),
        ("y", "AA==", "AQ==", False),
        ("u", "F47AC10B-58CC-4372-A567-0E02B2C3D479", "f47ac10b-58cc-4372-a567-0e02b2c3d479", True),
        ("p", "1.50", "1.5", False),
    ],
)
def test_equal_is_what_the_type_map_says(
    tmp_path: Path, column: str, source: object, mirror: object, same: bool
) -> None:
    world = World({1: json.dumps({column: source})}, {1: json.dumps({column: mirror})})

    assert kinds(reconciled(world, tmp_path)) == ({} if same else {1: "different"})


def test_json_is_compared_by_value() -> None:
    assert same_json('{"a": 1e2, "b": null}', '{"b":null,"a":100}')
    assert same_json("100000000000000000000000000000000", "1e32")
    assert not same_json("9007199254740993", "9007199254740992")
    assert not same_json("9007199254740993", "9007199254740992.0")
    assert same_json("9007199254740992", "9007199254740992.0")
    assert not same_json("1" + 400 * "0", "1.5")
    assert same_json("1" + 400 * "0", "1" + 400 * "0")
    assert not same_json('{"a": 1}', '{"a": 1, "b": null}')
    assert not same_json("1", '"1"')
    assert not same_json("1", None)


def test_what_arrives_meanwhile_is_no_difference(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {3: NOTE})
    world.events = [lambda w: w.apply(1), lambda w: w.apply(3), lambda w: w.apply(2)]

    result = reconciled(world, tmp_path)

    assert result.equal
    assert exit_code([result]) == 0


def test_a_mirror_row_that_goes_on_moving_is_neither_equal_nor_different(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: "{}", 2: NOTE})

    def move(w: World) -> None:
        w.applied[1] = w.sequence()

    world.events = [move] * 1_000

    result = reconciled(world, tmp_path)

    assert not result.differences
    assert [one.key for one in result.changing] == ["[1]"]
    assert exit_code([result]) == 3
    assert "undecided" in "\n".join(lines(result, 20))


def test_a_source_row_that_goes_on_changing_differs_from_a_mirror_row_that_stands_still(tmp_path: Path) -> None:
    world = World({1: NOTE}, {1: "{}"})

    def change(w: World) -> None:
        w.source[1] = json.dumps({"s": str(w.now)})

    world.events = [change] * 1_000

    assert kinds(reconciled(world, tmp_path)) == {1: "different"}


def test_a_row_with_an_applied_sequence_of_a_time_to_come_is_compared_like_any_other(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: "{}", 2: NOTE})
    world.applied = dict.fromkeys([1, 2], world.sequence(ahead=10**12))

    result = reconciled(world, tmp_path, repair=True)

    assert kinds(result) == {1: "different"}
    assert "a time to come" in result.not_repaired[0]
    assert not world.published


def test_while_the_mirror_is_on_its_way_to_the_source_nothing_is_called_different(tmp_path: Path) -> None:
    """A consumer that is two minutes behind applies everything in the end, one row every five seconds."""
    world = World(dict.fromkeys(range(25), NOTE), dict.fromkeys(range(25), "{}"))
    base = world.now // 1_000 - 10**9
    late = iter(range(25))

    def apply(w: World) -> None:
        key = next(late, None)
        if key is not None:
            w.apply(key)
            w.applied[key] = str(four_sections(base + key))

    world.events = [apply] * 1_000

    assert reconciled(world, tmp_path).equal


def test_what_is_repaired_is_published_as_the_source_has_it_and_looked_at_again(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE, 3: NOTE}, {1: "{}", 2: NOTE, 9: NOTE})

    result = reconciled(world, tmp_path, repair=True)

    assert sorted(world.published) == [(1, NOTE), (3, NOTE), (9, None)]
    assert world.mirror == world.source
    assert (result.repaired, result.equal, exit_code([result])) == (3, True, 0)


def test_what_is_published_and_not_applied_is_not_healed(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {2: NOTE}, consuming=False)

    result = reconciled(world, tmp_path, repair=True)

    assert (kinds(result), result.repaired) == ({1: "missing"}, 0)
    assert "does the consumer run?" in result.not_repaired[-1]


@pytest.mark.parametrize("error", [MisconfiguredError("topic gone"), TransientError("UNAVAILABLE")])
def test_what_cannot_be_published_is_said_and_the_differences_are_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("services.cdc_consumer.reconcile.KEYS", 1)
    monkeypatch.setattr("services.cdc_consumer.second_look.PATIENCE", timedelta(0))
    world = World({1: NOTE, 2: NOTE, 3: NOTE}, {3: NOTE}, unpublished={1: error})

    result = reconciled(world, tmp_path, repair=True)

    assert (kinds(result), result.repaired) == ({1: "missing"}, 1)
    assert result.not_repaired == [f"[1] and 0 others were not published: {error}"]


def test_a_table_that_cannot_be_compared_says_nothing_of_the_others_until_a_stop() -> None:
    stop = Stop()

    def compare(table: str) -> Comparison:
        if table == "away":
            raise TransientError("UNAVAILABLE")
        if table == "wrong":
            raise MisconfiguredError("no such table")
        return Comparison(table)

    found = dict(compared(compare, ["one", "away", "wrong", "two"], stop))
    assert found == {
        "one": Comparison("one"),
        "away": "UNAVAILABLE; ask again",
        "wrong": "no such table",
        "two": Comparison("two"),
    }
    stop.request()
    with pytest.raises(TransientError):
        list(compared(compare, ["away", "one"], stop))


def test_a_source_that_does_not_start_says_how_another_one_is_named() -> None:
    with (
        opened_source("python -c pass", {}, Stop()) as source,
        pytest.raises(MisconfiguredError, match=r'--source "python -m services\.bigtable_reader rows"'),
    ):
        source.tables()


def test_a_source_without_any_of_the_mirrors_rows_deletes_none_of_them(tmp_path: Path) -> None:
    world = World({}, {1: NOTE, 2: NOTE})

    result = reconciled(world, tmp_path, repair=True)

    assert not world.published
    assert set(kinds(result).values()) == {"extra"}
    assert "none is deleted" in result.not_repaired[0]


def test_a_source_that_does_not_answer_for_each_key_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match="cannot be relied on"):
        reconciled(World({1: NOTE}, {}, honest=False), tmp_path)


def test_rows_that_no_mirror_can_hold_are_named_as_such(tmp_path: Path) -> None:
    world = World({1: '{"ai": ["1", null]}', 2: NOTE}, {1: NOTE, 2: NOTE}, nulls=[NOTE])

    result = reconciled(world, tmp_path)

    assert kinds(result) == {1: "unfit", None: "unfit"}
    shown = "\n".join(lines(result, 20))
    assert "value_does_not_fit" in shown
    assert "key_not_representable" in shown


def test_a_row_that_fits_now_is_compared_anew(tmp_path: Path) -> None:
    world = World({1: '{"ai": ["1", null]}'}, {})

    def mend(w: World) -> None:
        w.source[1] = NOTE
        w.apply(1)

    world.events = [mend]

    assert reconciled(world, tmp_path).equal


def test_columns_that_one_side_lacks_are_said(tmp_path: Path) -> None:
    world = World({1: NOTE}, {1: NOTE})
    world.found = replace(world.found, lacking=frozenset({"ai"}), left_out=("old",), staleness=timedelta(minutes=15))

    result = reconciled(world, tmp_path)

    assert result.equal
    assert result.settle == timedelta(minutes=15, seconds=30)
    (told,) = document([result], {})["tables"]
    assert (told["compared_as_null"], told["not_compared"]) == (("ai",), ("old",))


@pytest.mark.parametrize(
    ("file", "why"), [('exclude = ["things"]', "left out"), ('[tables."things"]\nmode = "history"', "history only")]
)
def test_a_table_that_has_no_mirror_is_refused(tmp_path: Path, file: str, why: str) -> None:
    plan = Plan(read_tables_file(file))

    with pytest.raises(MisconfiguredError, match=why):
        reconciled(World({1: NOTE}, {}, plan=plan), tmp_path)


def test_ignored_columns_are_not_compared(tmp_path: Path) -> None:
    plan = Plan(read_tables_file('[tables."things"]\nignored_columns = ["s"]'))
    world = World({1: '{"s": "a", "i": "1"}', 2: '{"i": "1"}'}, {1: '{"s": "b", "i": "1"}', 2: '{"i": "2"}'}, plan=plan)

    assert kinds(reconciled(world, tmp_path)) == {2: "different"}
    assert mirrored(encode_batch(HEADER, []), plan).definition.name == "things"


def test_without_a_file_every_table_is_compared() -> None:
    assert mirrored(encode_batch(HEADER, []), Plan(TablesFile())).definition.primary_key == ("id",)
