"""Comparing a mirror with its source: exactly the planted differences are named, whatever the rows hold.

Rows change while they are compared: some are called different, some are waited for, of some nobody can say.
Differences are repaired: published as the source has them, and looked at until they have come.
"""

import io
import json
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.app.reconcile.comparison import Candidate, Difference, TableDifferences
from services.cdc_consumer.app.reconcile.reconcile import _no_repair
from services.cdc_consumer.app.reconcile.reconcile_report import document, exit_code, lines
from services.cdc_consumer.commands.command_line import ReconcileCommand
from services.cdc_consumer.core.reconcile.comparing import DifferenceKind
from services.cdc_consumer.core.reconcile.row_keys import buckets_of, wire_keys
from services.cdc_consumer.core.reconcile.source_table import Mirrored
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.types.equality import same_json
from services.cdc_consumer.core.types.types import DATE, ENUM, INT64, STRING
from services.cdc_consumer.ports import MAKE_AGAIN
from services.cdc_consumer.wiring.reconcile import compared, reconcile
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Done, Key
from shared.contracts.tables_file import read_tables_file
from shared.runtime.stop import Stop
from tests.seeds import examples
from tests.source_values import VALUES
from tests.unit.cdc_consumer.compared import NOTE, START, Rows, World, kinds, reconciled

a_row = st.fixed_dictionaries({}, optional=VALUES)


def texts(rows: Mapping[int, Mapping[str, Any]]) -> Rows:
    """Return rows as JSON texts."""
    return {key: json.dumps({name: value.json for name, value in row.items()}) for key, row in rows.items()}


@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@dataclass
class LongReadings(World):
    """Each answer takes an hour; of all answers some are none, for the reading breaks off."""

    broken: frozenset[int] = frozenset()
    answers: int = 0

    def read(self, table: str, at: str | None = None) -> Iterator[bytes | Done]:
        for answer in super().read(table, at):
            self._wait()
            yield answer

    def rows_of(self, table: Mirrored, keys: Sequence[int]) -> pa.Table:
        self._wait()
        return super().rows_of(table, keys)

    def _wait(self) -> None:
        self.answers += 1
        if self.answers in self.broken:
            raise TransientError("UNAVAILABLE")


def test_readings_that_break_off_after_hours_are_begun_again_and_of_two_sides_only_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dict.fromkeys(range(6), NOTE)
    world = LongReadings(rows, dict(rows), broken=frozenset({3, 9}))
    monkeypatch.setattr(tenacity, "time", SimpleNamespace(monotonic=lambda: 3600.0 * world.answers))

    result = reconciled(world, tmp_path)

    assert exit_code([result]) == 0
    assert (result.source_rows, result.mirror_rows) == (6, 6)
    assert world.answers == 3 + 4 + 2 + 3  # two batches, header and end; three pages
    assert result.cost.queries == 1, "a page that did not come is asked for again, not the mirror"


PAIRS: list[tuple[str, object, object, bool]] = [
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
]
"""A column, a value of the source, one of the mirror, and whether they are the same."""


def test_equal_is_what_the_type_map_says(tmp_path: Path) -> None:
    world = World({}, {})
    for key, (column, source, mirror, _same) in enumerate(PAIRS):
        world.source[key], world.mirror[key] = json.dumps({column: source}), json.dumps({column: mirror})

    differ = kinds(reconciled(world, tmp_path))

    for key, pair in enumerate(PAIRS):
        assert differ.get(key) == (None if pair[-1] else "different"), pair


def test_json_is_compared_by_value() -> None:
    assert same_json('{"a": 1e2, "b": null}', '{"b":null,"a":100}')
    assert same_json("100000000000000000000000000000000", "1e32")
    assert not same_json("9007199254740993", "9007199254740992")
    assert not same_json("9007199254740993", "9007199254740992.0")
    assert same_json("9007199254740992", "9007199254740992.0")
    assert not same_json('{"a":0.12345678901234567890123}', '{"a":0.12345678901234568}')
    assert not same_json("[12345678901234567890123]", "[1.2345678901234568e22]")
    assert same_json("[0.1234567890123456]", "[0.12345678901234559]"), "one FLOAT64, spelt with 16 digits and with 17"
    assert same_json('{"a":1,"b":{"c":1,"c":2},"a":2}', '{"a":1,"b":{"c":1}}'), "BigQuery keeps the first"
    assert not same_json('{"a":1,"a":2}', '{"a":2}')
    assert not same_json("1e400", "1e401")
    assert not same_json("1e99999999999999999999", "1")
    assert not same_json("1" + 400 * "0", "1.5")
    assert same_json("1" + 400 * "0", "1" + 400 * "0")
    assert not same_json('{"a": 1}', '{"a": 1, "b": null}')
    assert not same_json("1", '"1"')
    assert not same_json("1", None)


def test_a_table_that_cannot_be_compared_reports_nothing_of_the_others_until_a_stop() -> None:
    stop = Stop()

    def compare(table: str) -> TableDifferences:
        if table == "away":
            raise TransientError("UNAVAILABLE")
        if table == "wrong":
            raise MisconfiguredError("made-up", "no such table")
        return TableDifferences(table)

    found = dict(compared(compare, ["one", "away", "wrong", "two"], stop))
    assert found == {
        "one": TableDifferences("one"),
        "away": "UNAVAILABLE; ask again",
        "wrong": "no such table [made-up]",
        "two": TableDifferences("two"),
    }
    stop.request()
    with pytest.raises(TransientError):
        list(compared(compare, ["away", "one"], stop))


def test_a_time_to_come_is_refused_before_anything_is_asked() -> None:
    asked = ReconcileCommand(tables=["t"], at="9999-01-01T00:00:00Z")
    with pytest.raises(MisconfiguredError, match="--at 9999-01-01T00:00:00Z is in the future: give a time that is"):
        reconcile(asked, {"GOOGLE_CLOUD_PROJECT": "p", "BIGQUERY_DATASET": "d"}, Stop(), io.StringIO())


def test_a_source_that_does_not_start_reports_how_another_one_is_named() -> None:
    with (
        opened_source("python -c pass", {}, Stop()) as source,
        pytest.raises(MisconfiguredError, match=r'--source "python -m services\.bigtable_reader rows"'),
    ):
        source.tables()


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


def test_a_row_that_fits_now_is_compared_again(tmp_path: Path) -> None:
    world = World({1: '{"ai": ["1", null]}'}, {})

    def fix(w: World) -> None:
        w.source[1] = NOTE
        w.apply(1)

    world.events = [fix]

    assert reconciled(world, tmp_path).equal


def test_columns_that_one_side_lacks_are_reported(tmp_path: Path) -> None:
    world = World({1: NOTE}, {1: NOTE})
    world.found = replace(world.found, lacking=frozenset({"ai"}), left_out=("old",), staleness=timedelta(minutes=15))

    result = reconciled(world, tmp_path)

    assert result.equal
    assert result.settle == timedelta(minutes=15, seconds=30)
    (one,) = document([result], {})["tables"]
    assert (one["compared_as_null"], one["not_compared"]) == (("ai",), ("old",))


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


# Rows that change while they are compared.


def test_what_arrives_meanwhile_is_no_difference(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {3: NOTE})

    def arrive(w: World) -> None:
        for key in (1, 3, 2):
            w.apply(key)

    world.events = [arrive]

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


def test_how_long_ago_a_row_was_applied_makes_no_difference(tmp_path: Path) -> None:
    """Nor whether it is known: the values are compared."""
    world = World(dict.fromkeys(range(4), NOTE), {0: NOTE, 1: NOTE, 2: NOTE, 3: "{}"})
    world.applied = {0: world.sequence(), 1: str(four_sections(1)), 3: str(four_sections(1))}

    result = reconciled(world, tmp_path)

    assert kinds(result) == {3: "different"}
    assert (result.matched, result.undecided) == (4, 0)


def test_what_has_been_applied_is_reported_up_to_the_present(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: NOTE, 2: NOTE})
    world.applied = {1: world.sequence(ahead=-5), 2: world.sequence(ahead=10**12)}

    assert reconciled(world, tmp_path).newest_applied == world.sequence(ahead=-5)


def test_a_row_with_an_applied_sequence_of_a_time_to_come_is_compared_like_any_other(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: "{}", 2: NOTE})
    world.applied = dict.fromkeys([1, 2], world.sequence(ahead=10**12))

    result = reconciled(world, tmp_path, repair=True)

    assert kinds(result) == {1: "different"}
    assert "a time in the future" in result.not_repaired[0]
    assert not world.published


@pytest.mark.parametrize(
    "stray",
    [
        None,
        pytest.param(str(four_sections(10**18)), id="of a time to come"),
        pytest.param("FF", id="short"),
        pytest.param(str(four_sections(START // 1_000 - 1)), id="of a repair, or a snapshot"),
    ],
)
def test_while_the_mirror_is_on_its_way_to_the_source_nothing_is_called_different(
    tmp_path: Path, stray: str | None
) -> None:
    """A consumer that is two minutes behind applies everything in the end, one row every five seconds.

    A row that looks newer than all others does not make it look as if it were there.
    """
    world = World(dict.fromkeys(range(25), NOTE), dict.fromkeys(range(25), "{}"))
    if stray is not None:
        world.source[99] = world.mirror[99] = NOTE
        world.applied[99] = stray
    base = world.now // 1_000 - 10**9
    late = iter(range(25))

    def apply(w: World) -> None:
        for key in islice(late, 6):  # half a minute has passed
            w.apply(key)
            w.applied[key] = str(four_sections(base + key))

    world.events = [apply] * 1_000

    assert reconciled(world, tmp_path).equal


# Repairs.


def test_what_is_repaired_is_published_as_the_source_has_it_and_inspected_again(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("error", [MisconfiguredError("made-up", "topic gone"), TransientError("UNAVAILABLE")])
def test_what_cannot_be_published_is_reported_and_the_differences_are_reported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("services.cdc_consumer.app.reconcile.reconcile.KEYS", 1)
    monkeypatch.setattr("services.cdc_consumer.app.reconcile.recheck.RETRY_BUDGET", timedelta(0))
    world = World({1: NOTE, 2: NOTE, 3: NOTE}, {3: NOTE}, unpublished={1: error})

    result = reconciled(world, tmp_path, repair=True)

    assert (kinds(result), result.repaired) == ({1: "missing"}, 1)
    assert result.not_repaired == [f"[1] and 0 others were not published: {error}"]


def test_a_source_without_any_of_the_mirrors_rows_deletes_none_of_them(tmp_path: Path) -> None:
    world = World({}, {1: NOTE, 2: NOTE})

    result = reconciled(world, tmp_path, repair=True)

    assert not world.published
    assert set(kinds(result).values()) == {"extra"}
    assert "none is deleted" in result.not_repaired[0]


@pytest.mark.parametrize(
    ("key", "held", "applied", "why"),
    [
        (None, {"id": "no base64"}, "", "that key: take a snapshot, and delete missing rows then"),
        ((None,), {"id": None}, "", MAKE_AGAIN),
        (("1",), {"id": 1}, "by hand", f"no sequence of ours ('by hand'): {MAKE_AGAIN}"),
        (("1",), {"id": 1}, "", ""),
    ],
)
def test_a_row_that_cannot_be_repaired_is_reported_with_what_works_on_a_table_with_changes(
    key: Key | None, held: Mapping[str, object], applied: str, why: str
) -> None:
    one = Difference("[1]", DifferenceKind.EXTRA, Candidate(key, held), applied)
    text = _no_repair(one, latest=0)
    assert bool(text) == bool(why)
    assert why in text


# Keys in buckets, in bounded memory.


def test_a_key_is_in_one_bucket_wherever_it_stands() -> None:
    texts = ["", "x" * 3_000_000, "y", *["a" * (n % 300) + str(n) for n in range(20_000)], "z" * 1_100_000, "", "q"]
    together = buckets_of(pa.array(texts, pa.large_string()), 64)

    alone = [int(buckets_of(pa.array([text], pa.large_string()), 64)[0]) for text in [*texts[:500], *texts[-5:]]]
    assert [*together[:500], *together[-5:]] == alone
    assert len(set(together.tolist())) == 64
    assert len(buckets_of(pa.array([], pa.large_string()), 64)) == 0


def test_memory_is_bounded_whatever_all_keys_together_take() -> None:
    texts = pa.array([f"{n:0168d}" for n in range(100_000)], pa.large_string())
    tracemalloc.start()
    buckets_of(texts, 64)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 4 * texts.nbytes


def test_a_key_is_written_as_its_source_writes_it() -> None:
    kinds = {"number": INT64, "colour": ENUM, "day": DATE, "name": STRING}
    rows = pa.table({"number": [5], "colour": [7], "day": [20_000], "name": ["a"]})

    assert wire_keys(rows, kinds) == [("5", "7", "2024-10-04", "a")]
