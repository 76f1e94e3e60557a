"""What a deletion deletes, and what it never does: nothing that lives is lost for good, whenever it comes."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, structs

from services.cdc_consumer.adapters.delete_missing_rows.mirror_rows import disk_row_buffer
from services.cdc_consumer.app.delete_missing_rows.deletion import (
    Deletion,
    delete_missing_rows,
    deletion_document,
    described,
    estimate_document,
    exit_code,
    lines,
    print_deletion,
)
from services.cdc_consumer.core.delete_missing_rows.deletion import first_sequence, last_sequence_before, source_keys
from services.cdc_consumer.core.schema.history import COMMITTED_COLUMN, MOD_TYPE_COLUMN, SOURCE_TABLE_COLUMN
from services.cdc_consumer.core.schema.tables import (
    CHANGE_SEQUENCE_NUMBER,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_COLUMN,
    DELETED_COLUMN,
    TableDefinition,
)
from services.cdc_consumer.core.types.types import FLOAT32_KEY
from services.cdc_consumer.core.types.values import wire_values
from services.cdc_consumer.ports import (
    MAKE_AGAIN,
    MirrorTable,
    OtherRows,
    QueryEstimate,
    QuerySpend,
    RowBuffer,
    RowCount,
)
from shared.contracts.change_batch import Column, decode_batch
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import SEQUENCE_COLUMN
from shared.contracts.row_id import canonical_key
from tests.builders import a_change, a_header, a_message, table_definition
from tests.fakes.cdc_writer import FakeAppending, FakeCdcWriter
from tests.fakes.mirror_rows import FakeMirrorRows, FakeSource
from tests.seeds import examples
from tests.unit.cdc_consumer.world import NOW, World, an_end

AFTER = timedelta(minutes=10)
BOTH = '[defaults]\nmode = "both"'
Message = Mapping[str, object]


def deletion_in(
    world: World,
    source: FakeSource | None = None,
    *,
    rows: FakeMirrorRows | None = None,
    before: int = 0,
    execute: bool = True,
    unasked: Callable[[RowCount], None] | None = None,
) -> Deletion:
    """Delete the missing rows of the planes, by what it is complete since."""
    rows = rows or FakeMirrorRows(world.writer)
    mirror = rows.find("planes")
    return delete_missing_rows(
        mirror,
        rows,
        world.writer,
        None if source is None else described(source, "planes"),
        disk_row_buffer,
        world.stop,
        world.clock,
        before=before or mirror.complete_since,
        after=AFTER,
        execute=execute,
        unasked=unasked,
    )


def a_world(tables_file: str = "") -> World:
    """Return a mirror with rows of before (1 to 3) and of since (11 and 12) the snapshot at 100."""
    world = World(tables_file=tables_file)
    world.apply(
        *(a_message(a_change(key, 50)) for key in (1, 2, 3)), *(a_message(a_change(key, 100)) for key in (11, 12))
    )
    world.apply(an_end(since=100))
    return world


@pytest.fixture
def world() -> World:
    return a_world()


def test_what_the_source_does_not_have_goes_and_what_it_has_stays(world: World) -> None:
    source = FakeSource(a_header(), {2: "", 11: "", 12: ""})
    dry = deletion_in(world, source, execute=False)
    assert (dry.older, dry.living, dry.gone, dry.deleted, dry.left) == (3, 1, 2, 0, None)
    assert (dry.some_gone, dry.some_living) == (["[1]", "[3]"], ["[2]"])
    assert set(world.names()) == {1, 2, 3, 11, 12}

    done = deletion_in(world, source)
    assert (done.deleted, done.left, done.clean) == (2, 0, False)
    assert set(world.names()) == {2, 11, 12}


def test_one_query_finds_the_rows_and_another_one_counts_what_is_left_of_those_that_were_deleted(world: World) -> None:
    queries = []
    for execute in (False, True, True):
        rows = FakeMirrorRows(world.writer)
        deletion_in(world, FakeSource(a_header(), {2: "", 11: ""}), rows=rows, execute=execute)
        queries.append(rows.queries)

    assert queries == [1, 2, 1]
    assert set(world.names()) == {2, 11, 12}


def test_how_many_rows_are_deleted_of_which_no_source_was_asked_can_be_refused(world: World) -> None:
    counted: list[RowCount] = []

    def refuse(count: RowCount) -> None:
        counted.append(count)
        raise MisconfiguredError("made-up", "too many")

    with pytest.raises(MisconfiguredError, match="too many"):
        deletion_in(world, unasked=refuse)
    assert counted == [RowCount(3, 5)]
    assert set(world.names()) == {1, 2, 3, 11, 12}


def test_one_that_was_recreated_is_not_healed_while_its_rows_may_be_on_their_way(world: World) -> None:
    rows = FakeMirrorRows(world.writer)
    rows.announced_at = NOW // 1_000 - AFTER // timedelta(microseconds=1)
    assert not deletion_in(world, rows=rows).early
    rows.announced_at += 1
    assert deletion_in(world, rows=rows).early


def test_a_later_time_than_that_of_the_snapshot_is_always_refused(world: World) -> None:
    for source in (None, FakeSource(a_header(), {11: ""})):
        with pytest.raises(MisconfiguredError, match="complete since"):
            deletion_in(world, source, before=101)
    world.tables.complete_since = {}
    with pytest.raises(MisconfiguredError, match="no snapshot"):
        deletion_in(world, before=100)
    assert set(world.names()) == {1, 2, 3, 11, 12}


def of_planes(rows: Sequence[int] = (11,), *, strays: Sequence[int] = (), **header: Any) -> FakeSource:
    """Return a source of the planes; ``strays`` it answers with unasked, ``header`` is what differs in its header."""
    source = FakeSource(structs.replace(a_header(), **header), dict.fromkeys(rows, ""))
    source.strays += strays
    return source


@pytest.mark.parametrize(
    ("source", "why", "asked"),
    [
        (of_planes(source=a_header().source.replace("/d/", "/staging/")), "not a mirror of", False),
        (of_planes(primary_key=("name",)), "another key", False),
        (of_planes(columns=(Column("id", "STRING"), Column("name", "STRING"))), "another key", False),
        pytest.param(of_planes([7]), "right database", True, id="nothing that is newer"),
        pytest.param(of_planes(strays=[99]), "not asked for", True, id="answers with other keys"),
    ],
)
def test_a_source_that_cannot_be_the_mirrors_is_refused_and_nothing_is_deleted(
    world: World, source: FakeSource, why: str, asked: bool
) -> None:
    with pytest.raises(MisconfiguredError, match=why):
        deletion_in(world, source)
    assert bool(source.asked) is asked
    assert set(world.names()) == {1, 2, 3, 11, 12}


def test_rows_that_bigquery_does_not_take_are_counted_and_bigquery_away_is_waited_for(world: World) -> None:
    world.writer.unavailable = 2
    world.writer.refuses = lambda _table, row: row["id"] == 2
    done = deletion_in(world)

    assert (done.deleted, done.refused, done.left, done.clean) == (2, 1, 1, False)
    assert set(world.names()) == {2, 11, 12}


def test_a_row_without_a_whole_key_is_no_row_of_the_source_and_is_reported_to_stay(world: World) -> None:
    planes = world.tables.there["planes"]
    nothing = dict.fromkeys([column.name for column in planes.columns])
    ours = {CHANGE_TYPE: "UPSERT", CHANGE_SEQUENCE_NUMBER: "0/0/0/1", SEQUENCE_COLUMN: "0/0/0/1"}
    world.writer.apply(planes, nothing | ours)
    for source in (FakeSource(a_header(), {2: "", 11: "", 12: ""}), None):
        dry = deletion_in(world, source, execute=False)
        assert (dry.older, dry.keyless, dry.gone) == (4, 1, 3 - dry.living)
    done = deletion_in(world)

    assert (done.deleted, done.refused, done.left, done.clean) == (3, 0, 1, False)


def test_a_table_that_may_not_be_written_is_reported_so_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cdc_consumer.app.delete_missing_rows.deletion.RETRY_BUDGET", timedelta(0))
    world.writer.missing = {"planes"}
    with pytest.raises(MisconfiguredError, match=r"dataEditor.*0 rows were deleted"):
        deletion_in(world)


def test_the_sequence_of_a_deletion_is_below_that_of_the_snapshot_and_above_all_before() -> None:
    last, first = (parse_sequence(text) for text in (last_sequence_before(100), first_sequence(100)))

    assert last < first == four_sections(100)
    assert last > four_sections(99, (1 << 64) - 1, (1 << 64) - 1, 5)


def test_a_row_that_is_kept_as_deleted_has_a_time_before_the_snapshot() -> None:
    world = a_world("[defaults]\nsoft_delete = true")
    deletion_in(world)

    assert {
        key: row[COMMIT_TIMESTAMP_COLUMN] for (key,), row in world.writer.rows("planes").items() if row[DELETED_COLUMN]
    } == (dict.fromkeys((1, 2, 3), 99))


def test_keys_are_as_the_source_writes_them() -> None:
    kinds = ("INT64", "BOOL", "STRING", "NUMERIC", "DATE", "TIMESTAMP", "BYTES", "FLOAT64", "FLOAT32", "UUID")
    header = a_header(columns=[(kind, kind) for kind in kinds], key=kinds)
    rows = pa.table(
        {
            "int64": [1 << 60, -1],
            "BOOL": [True, False],
            "STRING": ["", "é"],
            "NUMERIC": ["1.5", "0"],
            "DATE": pa.array([0, -719162], pa.int32()),
            "TIMESTAMP": [1, -1],
            "BYTES": ["AA==", ""],
            "FLOAT64": ["NaN", "1.5"],
            "FLOAT32": ["-Infinity", "0.0"],
            "UUID": ["u", "v"],
        }
    )

    first, second = source_keys(rows, header)
    assert first == (
        str(1 << 60), True, "", "1.5", "1970-01-01", "1970-01-01T00:00:00.000001Z", "AA==", "NaN", "-Infinity", "u",
    )  # fmt: skip
    assert second == ("-1", False, "é", "0", "0001-01-01", "1969-12-31T23:59:59.999999Z", "", 1.5, 0.0, "v")


def test_a_key_of_32_bits_in_a_mirror_is_the_row_that_the_source_means_whatever_digits_it_writes() -> None:
    header = a_header(columns=[("id", "FLOAT32")], key=("id",))
    in_mirror, _misfits = wire_values(FLOAT32_KEY, pa.array([1.1], pa.float64()))
    (key,) = source_keys(pa.table({"ID": in_mirror}), header)
    assert key is not None
    (asked,) = key

    of_source = {canonical_key("planes", header.key_types(), {"id": text}) for text in (1.1, 1.100000023841858)}
    assert of_source == {canonical_key("planes", header.key_types(), {"id": asked})}


def test_a_key_that_no_row_of_the_source_can_have_is_none() -> None:
    header = a_header(columns=[("id", "BYTES")], key=("id",))
    assert source_keys(pa.table({"ID": ["AB=="]}), header) == [("AA==",)], "one text of the same bytes"
    assert source_keys(pa.table({"ID": ["AA==", "no base64"]}), header) == [("AA==",), None]


OF_TEXTS, OF_BYTES = (a_header(columns=[("id", kind), ("name", "STRING")]) for kind in ("STRING", "BYTES"))


def keyed_world(tables_file: str = "", *, before: Sequence[str], after: Sequence[str]) -> World:
    """Return a mirror with texts as keys: rows of before the snapshot at 100, and of since then."""
    world = World(tables_file=tables_file)
    for time, keys in ((50, before), (100, after)):
        changes = [structs.replace(a_change(1, time), key=json.dumps({"id": key})) for key in keys]
        world.apply(a_message(*changes, header=OF_TEXTS))
    world.tables.complete_since["planes"] = 100
    return world


@pytest.mark.parametrize("tables_file", ["", BOTH])
def test_keys_that_no_row_of_the_source_can_have_are_not_asked_for_and_go(tables_file: str) -> None:
    world = keyed_world(tables_file, before=["no base64", "AAA=", "BBA="], after=["CCA="])
    source = FakeSource(OF_BYTES, {"AAA=": "", "CCA=": ""})

    done = deletion_in(world, source)

    assert ("no base64",) not in source.asked
    assert (done.gone, done.living, done.deleted, done.left) == (2, 1, 2, 0)
    assert (done.some_gone, done.some_living) == (['["BBA="]', '{"id":"no base64"}'], ['["AAA="]'])
    assert {key for (key,) in world.writer.rows("planes")} == {"AAA=", "CCA="}


def test_a_source_that_writes_keys_in_another_way_than_all_that_is_newer_deletes_nothing() -> None:
    world = keyed_world(before=["row 1", "row 2"], after=["row 3", "row 4"])
    source = FakeSource(OF_BYTES, {"cm93IDE=": "", "cm93IDM=": ""})

    with pytest.raises(MisconfiguredError, match=r"none of 2 rows .* If it writes keys in another way"):
        deletion_in(world, source)
    assert len(world.writer.rows("planes")) == 4


def last_versions(world: World) -> Sequence[Mapping[str, Any]]:
    """Return the last version of each row in the history of the planes."""
    versions = sorted(
        world.writer.appended.get("planes_changelog", ()), key=lambda row: parse_sequence(row[SEQUENCE_COLUMN])
    )
    return list({row["id"]: row for row in versions}.values())


def test_a_history_shows_that_a_missing_row_is_no_more_and_repeats_are_one_delete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.cdc_consumer.app.delete_missing_rows.deletion.RETRY_BUDGET", timedelta(0))
    world = a_world(BOTH)
    world.writer.interrupted = lambda table: table == "planes"
    with pytest.raises(TransientError):
        deletion_in(world)
    assert set(world.names()) == {1, 2, 3, 11, 12}, "the history first: what is gone from the mirror nobody finds again"

    world.writer.interrupted = lambda _table: False
    assert deletion_in(world).deleted == 3
    ends = [row for row in world.writer.appended["planes_changelog"] if row[MOD_TYPE_COLUMN] == "DELETE"]
    assert sorted(row["id"] for row in ends) == [1, 1, 2, 2, 3]
    assert {row[SEQUENCE_COLUMN] for row in ends} == {last_sequence_before(100)}
    assert {(row[COMMITTED_COLUMN], row[SOURCE_TABLE_COLUMN]) for row in ends} == {(99, "planes")}
    assert {row["id"] for row in last_versions(world) if row[MOD_TYPE_COLUMN] != "DELETE"} == {11, 12}


def test_what_a_history_does_not_take_stays_in_the_mirror_too() -> None:
    world = a_world(BOTH)
    world.writer.refuses = lambda table, row: table == "planes_changelog" and row["id"] == 2
    done = deletion_in(world)

    assert (done.deleted, done.refused, done.left, done.clean) == (2, 1, 1, False)
    assert set(world.names()) == {2, 11, 12}


@dataclass
class History:
    """What happened to a source, and the messages that tell of it: all but what happened silently."""

    rows: dict[int, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    time: int = 100

    def write(self, key: int) -> None:
        """Write a row."""
        self.time += 1
        self.rows[key] = f"name {self.time}"
        self.messages.append(a_message(a_change(key, self.time)))

    def delete(self, key: int) -> None:
        """Delete a row."""
        self.time += 1
        if self.rows.pop(key, None) is not None:
            self.messages.append(a_message(a_change(key, self.time, "DELETE")))

    def lose(self, key: int) -> None:
        """Delete a row, and no record tells of it."""
        self.rows.pop(key, None)

    def snapshot(self) -> None:
        """Publish all rows that there are, and that this was all."""
        self.time += 1
        header = structs.replace(a_header(), origin="snapshot")
        self.messages += [
            a_message(a_change(key, self.time, name=name), header=header) for key, name in self.rows.items()
        ]
        self.messages.append(an_end(since=self.time))


KEYS = st.integers(1, 4)
STEPS = st.lists(st.tuples(st.sampled_from(["write", "write", "delete", "lose", "snapshot"]), KEYS), max_size=9)
SINCE = st.lists(st.tuples(st.sampled_from(["write", "delete"]), KEYS), max_size=4)


def _rank(message: Message) -> int:
    """Order messages as badly as can be: the end of each snapshot before its rows."""
    header = decode_batch(message["data"]).header  # type: ignore[arg-type]
    if header.complete_since is not UNSET:
        return 1
    return 0 if header.origin == "stream" else 2


@settings(max_examples=examples(60))
@given(
    before=STEPS,
    after=SINCE,
    order=st.randoms(use_true_random=False),
    ends_first=st.booleans(),
    deletions=st.sets(st.integers(0, 25)),
    asks=st.booleans(),
    soft_delete=st.booleans(),
)
@example(
    before=[("write", 1)],
    after=[],
    order=Random(0),
    ends_first=True,
    deletions=set(range(25)),
    asks=False,
    soft_delete=False,
)
def test_whenever_missing_rows_are_deleted_and_whatever_the_order_the_mirror_ends_equal(
    before: Sequence[tuple[str, int]],
    after: Sequence[tuple[str, int]],
    order: Random,
    ends_first: bool,
    deletions: set[int],
    asks: bool,
    soft_delete: bool,
) -> None:
    history = History()
    for step, key in before:
        history.snapshot() if step == "snapshot" else getattr(history, step)(key)
    history.snapshot()
    for step, key in after:
        getattr(history, step)(key)
    world = World(tables_file=f'[defaults]\nmode = "both"\nsoft_delete = {str(soft_delete).lower()}\n')
    messages = [*history.messages, *order.choices(history.messages, k=3)]
    order.shuffle(messages)
    if ends_first:
        messages.sort(key=_rank)
    source = FakeSource(a_header(), history.rows) if asks else None
    for place, message in enumerate(messages):
        world.apply(message)
        if place in deletions and world.tables.complete_since:
            _deleted_if_it_may_be(world, source)
    done = deletion_in(world, source)
    assert done.clean
    kept = {row["id"]: row["name"] for row in world.writer.rows("planes").values() if not row.get("_millrace_deleted")}
    assert kept == history.rows
    assert {row["id"]: row["name"] for row in last_versions(world) if row[MOD_TYPE_COLUMN] != "DELETE"} == history.rows


def _deleted_if_it_may_be(world: World, source: FakeSource | None) -> None:
    """Delete missing rows; before the snapshot arrives, the source may look like another one, and that is fine."""
    before = dict(world.writer.rows("planes"))
    try:
        deletion_in(world, source)
    except MisconfiguredError:
        assert world.writer.rows("planes") == before


def test_however_many_rows_are_older_some_are_in_memory_at_a_time(world: World) -> None:
    """Forty pages of more than half a megabyte each, and never more in memory than a few of them would take."""
    pages, size = 40, 20_000
    largest, before = 0, pa.total_allocated_bytes()

    def page(number: int) -> pa.Table:
        keys = pa.array(range(number * size, (number + 1) * size), pa.int64())
        names = pa.repeat(pa.scalar("a name of some length"), size)
        return pa.table({"id": keys, "name": names, "seats": keys})

    class Large(FakeMirrorRows):
        def older(self, mirror: MirrorTable, before: int, into: RowBuffer) -> OtherRows:
            for number in range(pages):
                into.add(page(number))
            return OtherRows(pages * size, page(0).slice(0, 0))

    class Measuring(FakeCdcWriter):
        def append(self, definition: TableDefinition, rows: pa.Table) -> FakeAppending:
            nonlocal largest
            largest = max(largest, pa.total_allocated_bytes() - before)
            return super().append(definition, rows.slice(0, 1))

    world.writer = Measuring(world.tables)
    done = deletion_in(world, rows=Large(world.writer))

    assert (done.older, done.deleted) == (pages * size, pages * size)
    assert largest < 5 * page(0).nbytes


# How a deletion is reported.


MIRROR = MirrorTable(table_definition(a_header()), "label", soft_delete=False, complete_since=1_000_000)
LATE = MirrorTable(table_definition(a_header()), "label", False, 1_000_000, timedelta(minutes=15))


def shown(found: Deletion, mirror: MirrorTable = MIRROR, *, execute: bool = True) -> list[str]:
    return list(lines(deletion_document("Planes", mirror, found, QuerySpend(2, 20_971_520), execute=execute)))


def test_a_dry_run_reports_what_would_go_and_how() -> None:
    found = Deletion(1_000_000, older=3, living=1, some_living=["[2]"], some_gone=["[1]", "[3]"])

    assert shown(found, execute=False) == [
        "planes: 3 rows from before 1970-01-01T00:00:01Z",
        "1 of them are in the source and stay: their snapshot rows are on their way, or are dead letters",
        "  of these keys, among others: [2]",
        "2 are not in the source and would be deleted; --execute deletes them",
        "  of these keys, among others: [1], [3]",
        "BigQuery billed 20971520 bytes for 2 queries",
    ]
    assert exit_code(found) == 1


def test_what_was_done_and_what_was_not_is_reported() -> None:
    found = Deletion(1_000_000, older=3, some_gone=["[1]"], deleted=2, refused=1, left=1, hidden=True)

    assert shown(found, LATE)[1:] == [
        "2 are not in the source and were deleted",
        "  of these keys, among others: [1]",
        "BigQuery has refused the deletion of 1",
        "1 are still there",
        "queries of it may be 900 s behind (max_staleness): run it again then",
        "BigQuery billed 20971520 bytes for 2 queries",
    ]


def test_what_no_change_can_delete_is_left_to_the_caller() -> None:
    found = Deletion(1_000_000, older=1, keyless=1)

    text = shown(found, execute=False)[2]
    assert "1 hold a NULL in their key" in text
    assert MAKE_AGAIN in text, "BigQuery takes no DELETE of a table with changes"


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Deletion(1), 0),
        (Deletion(1, older=2, deleted=2, left=0), 0),
        (Deletion(1, older=2, living=1), 1),
        (Deletion(1, older=2, refused=1), 1),
        (Deletion(1, older=2, keyless=1), 1),
        (Deletion(1, older=2, left=1), 1),
        (Deletion(1, hidden=True), 1),
        (Deletion(1, early=True), 1),
        (Deletion(1, unlabelled=True), 1),
    ],
)
def test_the_exit_code_reports_whether_anything_older_stays(found: Deletion, code: int) -> None:
    assert exit_code(found) == code


def test_it_is_one_object_where_that_is_asked_for() -> None:
    out = io.StringIO()
    print_deletion(
        deletion_document("Planes", MIRROR, Deletion(1_000_000, older=1), QuerySpend(1, 7), execute=False), True, out
    )

    document = json.loads(out.getvalue())
    assert (document["table"], document["mirror"], document["before"]) == ("Planes", "planes", "1970-01-01T00:00:01Z")
    assert (document["older"], document["gone"], document["left"]) == (1, 1, None)
    assert (document["queries"], document["bytes_billed"]) == (1, 7)


def test_what_a_deletion_would_read_is_printed_as_text_or_as_one_object() -> None:
    estimates = estimate_document("Planes", MIRROR, QueryEstimate(1_500_000_000, 670))
    text, as_json = io.StringIO(), io.StringIO()
    print_deletion(estimates, False, text)
    print_deletion(estimates, True, as_json)

    assert text.getvalue().splitlines() == [
        "planes: one query finds the rows: 1500000000 bytes (1.5 GB)",
        "  where rows are deleted, another one counts what is left: 670 bytes (670 B)",
    ]
    assert json.loads(as_json.getvalue()) == {
        "table": "Planes",
        "mirror": "planes",
        "read_bytes": 1_500_000_000,
        "count_bytes": 670,
    }
