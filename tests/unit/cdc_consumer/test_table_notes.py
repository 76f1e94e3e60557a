"""What a micro-batch says of each table: running, deferred or refused, and times of its latest change."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.core.stream.counts import Applied, Report, TableNote
from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.change_batch import Content, Header
from shared.contracts.timestamps import parse_timestamp
from tests.builders import COMMITTED, PLANE_COLUMNS, a_change, a_header, a_message, messages_table
from tests.unit.cdc_consumer.world import AIRPORTS, AT_ONCE, NOW, WIDER, World


@pytest.fixture
def world() -> World:
    return World()


def test_the_latest_change_has_its_time_at_each_stage(world: World) -> None:
    published = datetime.fromisoformat("2026-11-21T12:00:02+00:00")
    later = datetime.fromisoformat("2026-11-21T12:00:03+00:00")
    older = msgspec.structs.replace(a_change(2, 2), commit_timestamp="2026-11-21T11:00:00Z")
    counts = world.apply(
        {**a_message(a_change(1)), "publish_time": published},
        {**a_message(older), "publish_time": later},
    )

    committed = parse_timestamp(COMMITTED) // 1000
    assert counts.tables == {
        "planes": TableNote(latest=Applied(committed, parse_timestamp("2026-11-21T12:00:02Z") // 1000, NOW // 1000))
    }


def test_a_table_that_is_only_announced_is_well(world: World) -> None:
    assert world.apply(a_message()).tables == {"planes": TableNote()}


def test_a_table_in_trouble_says_why(world: World) -> None:
    world.tables.forbidden.add("planes")
    counts = world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert set(counts.tables) == {"planes", "airports"}
    assert "planes" in counts.tables["planes"].deferred
    assert counts.tables["airports"].deferred == ""


def test_while_a_table_is_known_to_be_in_trouble_each_task_says_the_real_why(world: World) -> None:
    world.tables.forbidden.add("planes")
    notes = [world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS)).tables for _ in range(5)]

    assert [note["planes"].deferred for note in notes] == ["table planes: permission denied"] * 5


def test_what_is_said_of_trouble_is_what_was_said_last_and_its_code_where_words_may_quote_a_row(world: World) -> None:
    definition = decode_messages(messages_table(a_message(a_change(1))), NOW).tables[0].definition
    known = world.memory.tables
    assert known.told(definition) is None

    known.began(definition, NOW, NOW, TableTroubleError("INTERNAL", suspected=True))
    told = known.told(definition)
    assert told is not None
    assert (told.shown, told.suspected) == ("INTERNAL", True)

    known.began(definition, NOW, NOW, TableTroubleError("row 'secret'", code="PERMISSION_DENIED"))
    told = known.told(definition)
    assert told is not None
    assert (str(told), told.shown, told.suspected) == ("PERMISSION_DENIED", "PERMISSION_DENIED", False)


def test_one_list_in_trouble_is_the_tables_trouble(world: World) -> None:
    world.writer.invisible["colour"] = 1_000_000
    counts = world.apply(a_message(a_change(1)), a_message(a_change(2, colour="red"), header=WIDER))

    note = counts.tables["planes"]
    assert note.deferred
    assert note.latest is not None


def test_what_waits_says_when_it_comes_again(world: World) -> None:
    world.tables.forbidden.add("planes")
    late = a_message(a_change(1), delivery_attempt=3)
    counts = world.apply(late, a_message(a_change(2)), a_message(a_change(1), header=AIRPORTS))

    assert counts.tables["planes"].again_at == (NOW + 120_000_000_000) // 1000
    assert counts.tables["airports"].again_at is None
    assert counts.plus(world.apply(a_message(a_change(1)))).tables["planes"].again_at == (NOW + 120_000_000_000) // 1000


def test_a_row_that_is_stuck_is_said_of_its_table_which_is_well_until_it_is_a_dead_letter(world: World) -> None:
    world.writer.stuck = lambda _table, row: row["name"] == "stuck"
    bad, good = a_change(1, 2, name="stuck"), a_message(a_change(3))
    counts = world.apply(good, a_message(bad), a_message(a_change(1), header=AIRPORTS))
    note = counts.tables["planes"]

    assert note.stuck == "rows that fail each time they come (1): table planes: INTERNAL"
    assert (note.deferred, note.again_at) == ("", (NOW + 30_000_000_000) // 1000)
    assert note.latest is not None
    assert (counts.tables["airports"].stuck, counts.tables_in_trouble) == ("", ())

    counts = world.apply(good, a_message(bad, delivery_attempt=10), a_message(a_change(1), header=AIRPORTS))
    assert (counts.dead_letters, counts.tables["planes"].stuck) == ({"retries_exhausted": 1}, "")


@pytest.mark.parametrize(
    ("header", "name", "reason"),
    [
        (a_header(key=()), "planes", "no_primary_key: "),
        (a_header("an air/port"), "'an air/port'", "bad_name: "),
        (a_header("Other.planes", columns=(*PLANE_COLUMNS, ("x", "STRUCT<>"))), "Other_planes", "unsupported_type: "),
    ],
)
def test_a_table_that_bigquery_could_not_hold_is_refused(world: World, header: object, name: str, reason: str) -> None:
    counts = world.apply(a_message(a_change(1), header=header), a_message(a_change(1), header=AIRPORTS))  # type: ignore[arg-type]

    assert counts.tables[name].unfit.startswith(reason)
    assert counts.tables["airports"] == TableNote(latest=counts.tables["airports"].latest)


@pytest.mark.parametrize(
    ("options", "content", "name", "also"),
    [
        ('name = "Fleet"', "changes", "Fleet", ()),
        ('dataset = "elsewhere"', "changes", "elsewhere.planes", ()),
        ('mode = "history"', "changes", "planes_changelog", ()),
        ('mode = "history"\nname = "Fleet"\ndataset = "elsewhere"', "changes", "elsewhere.Fleet_changelog", ()),
        ('mode = "both"', "changes", "planes", ("planes_changelog",)),
        ("", "entries", "planes_changelog", ()),
        ("", "images", "planes", ()),
    ],
)
def test_a_table_that_was_refused_is_well_once_it_fits_wherever_its_changes_go(
    options: str, content: Content, name: str, also: Collection[str]
) -> None:
    world = World(tables_file=f"[tables.planes]\n{options}\n")
    status = ConsumerStatus(world.clock, lambda _datasets: (), lambda _mirror: None)

    def states(header: Header) -> dict[str, str]:
        status.take(Report(counts=world.apply(a_message(a_change(1), header=header))))
        tables: Any = status.document(ready=True, alive=True)["tables"]
        return {one["table"]: one["state"] for one in tables}

    fitting = msgspec.structs.replace(a_header(), content=content)
    misfit = msgspec.structs.replace(a_header(columns=(*PLANE_COLUMNS, ("x", "STRUCT<>"))), content=content)
    assert states(misfit) == {name: "refused"}
    assert states(fitting) == dict.fromkeys({name, *also}, "running")


def test_a_table_whose_key_conflicts_is_refused_until_it_is_mended(world: World) -> None:
    other = a_header(columns=(("id", "STRING"), ("name", "STRING"), ("seats", "INT64")))
    world.apply(a_message(a_change(1), header=other))
    counts = world.apply(a_message(a_change(2)))
    assert counts.tables["planes"].unfit.startswith("schema_conflict: ")

    world.tables.there.clear()
    world.clock.pass_time(timedelta(seconds=11))
    assert world.apply(a_message(a_change(2))).tables["planes"].unfit == ""


def test_while_a_service_is_waited_for_the_tables_that_wait_are_named(world: World) -> None:
    said: list[tuple[str, str]] = []
    wait = world.wait
    world.wait = lambda table="", why="": (wait(), said.append((table, why)))[0]  # type: ignore[method-assign,func-returns-value]
    world.start_anew(RetryLimits(between_calls=AT_ONCE))
    world.writer.away = 10
    world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert {table for table, _why in said} >= {"planes", "airports"}
    assert all(why for table, why in said if table)


def test_words_are_short_enough_for_a_report() -> None:
    assert len(TableNote(deferred="x" * 10_000, unfit="y" * 10_000).deferred) == 600
