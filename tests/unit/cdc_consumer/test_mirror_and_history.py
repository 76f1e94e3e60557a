"""A task of a micro-batch whose changes go to two tables, on fakes: acked once both have them, each in its trouble."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from shared.contracts.change_sequence import four_sections
from shared.contracts.reasons import Reason
from shared.pubsub.packer import REQUEST_BYTES, Packer
from shared.pubsub.publisher import batch_message
from tests.builders import a_change, a_header, a_message
from tests.fakes.effects import CrashError, Effects
from tests.seeds import examples
from tests.unit.cdc_consumer.world import AIRPORTS, WIDER, World

BOTH = '[tables.planes]\nmode = "both"\n'
SOFT = "[defaults]\nsoft_delete = true\n"


@pytest.fixture
def world() -> World:
    return World(tables_file=BOTH)


def changelog(world: World) -> list[tuple[int, str | None]]:
    return [(row["id"], row["name"]) for row in world.writer.appended.get("planes_changelog", ())]


def deleted(world: World) -> Mapping[int, tuple[bool, str | None]]:
    rows: Mapping[Any, Any] = world.writer.rows("planes")
    return {key[0]: (row["_millrace_deleted"], row["name"]) for key, row in rows.items()}


def test_the_mirror_has_the_newest_and_the_history_every_change(world: World) -> None:
    counts = world.apply(
        a_message(a_change(1, 2), a_change(1, 3), a_change(2, 1)), a_message(a_change(1, 1, op="DELETE"))
    )

    assert world.names() == {1: "name 3", 2: "name 1"}
    assert changelog(world) == [(1, "name 2"), (1, "name 3"), (2, "name 1"), (1, None)]
    assert (counts.rows_written, counts.superseded, counts.acked) == (6, 2, 2)
    assert set(counts.tables) == {"planes", "planes_changelog"}


@pytest.mark.parametrize(("troubled", "fine"), [("planes", "planes_changelog"), ("planes_changelog", "planes")])
def test_a_message_waits_for_the_one_in_trouble_and_the_other_has_its_changes(
    world: World, troubled: str, fine: str
) -> None:
    world.tables.forbidden.add(troubled)
    counts = world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert world.leases.acked == ["a1"]
    assert list(world.leases.deferred_for) == ["a0"]
    assert counts.tables_in_trouble == (troubled,)
    assert (world.names(), changelog(world)) == (({1: "name 1"}, []) if fine == "planes" else ({}, [(1, "name 1")]))

    world.tables.forbidden.clear()
    world.restart()
    world.apply(a_message(a_change(1)))
    assert world.names() == {1: "name 1"}
    assert set(changelog(world)) == {(1, "name 1")}


def test_a_change_that_both_refuse_is_one_dead_letter(world: World) -> None:
    world.writer.refuses = lambda _table, row: row["name"] == "name 2"
    counts = world.apply(a_message(a_change(1, 1), a_change(1, 2)))

    assert world.reasons() == [Reason.REFUSED_BY_BIGQUERY]
    assert counts.dead_letters == {"refused_by_bigquery": 1}
    assert (world.names(), changelog(world), counts.acked) == ({1: "name 1"}, [(1, "name 1")], 1)


def test_a_change_that_one_refuses_is_a_dead_letter_and_in_the_other(world: World) -> None:
    world.writer.refuses = lambda table, row: table == "planes" and row["name"] == "name 2"
    world.apply(a_message(a_change(1, 1), a_change(1, 2)))

    assert world.reasons() == [Reason.REFUSED_BY_BIGQUERY]
    assert (world.names(), changelog(world)) == ({1: "name 1"}, [(1, "name 1"), (1, "name 2")])


def test_a_conflict_of_the_mirror_leaves_the_history_alone(world: World) -> None:
    world.apply(a_message(a_change(1)))
    there = world.tables.there["planes"]
    world.tables.there["planes"] = replace(there, columns=(replace(there.columns[1], name="id"), *there.columns[1:]))
    world.restart()
    world.tables.forget("planes")
    world.apply(a_message(a_change(2, 2)), a_message())

    assert world.reasons() == [Reason.SCHEMA_CONFLICT] * 2
    assert changelog(world) == [(1, "name 1"), (2, "name 2")]


def test_what_is_left_out_is_acked_counted_and_said_once() -> None:
    world = World(tables_file='exclude = ["airports"]')
    with capture_logs() as logs:
        counts = [world.apply(a_message(a_change(1), a_change(2), header=AIRPORTS)) for _ in range(2)]

    assert [(each.left_out, each.acked, each.rows_written) for each in counts] == [(2, 1, 0)] * 2
    assert [line["source_table"] for line in logs if line["event"] == "table_left_out"] == ["airports"]
    assert world.tables.there == {}


def test_a_snapshot_that_ends_while_its_table_is_left_out_is_warned_of_once() -> None:
    world = World(tables_file='exclude = ["airports"]')
    ends = [structs.replace(header, complete_since=str(four_sections(7))) for header in (AIRPORTS, a_header())]
    with capture_logs() as logs:
        world.apply(a_message(a_change(1), header=AIRPORTS))
        assert [line for line in logs if line["event"] == "snapshot_left_out"] == []
        for _ in range(2):
            world.apply(*(a_message(header=end) for end in ends))

    (logged,) = [line for line in logs if line["event"] == "snapshot_left_out"]
    assert (logged["source_table"], logged["log_level"]) == ("airports", "warning")
    assert "take a snapshot of the table again" in logged["fix"]


def test_rows_of_a_snapshot_that_are_left_out_are_warned_of_once_wherever_its_end_is() -> None:
    world, header = World(tables_file='exclude = ["airports"]'), structs.replace(AIRPORTS, origin="snapshot")
    with capture_logs() as logs:
        for row in range(3):
            world.apply(a_message(a_change(row), header=header))
    assert [line["source_table"] for line in logs if line["event"] == "snapshot_left_out"] == ["airports"]


def test_a_column_that_the_table_does_not_have_is_reported_once_for_it_may_be_misspelt() -> None:
    world = World(
        tables_file='[defaults]\nignored_columns = ["x"]\n[tables.planes]\nignored_columns = ["Naem", "SEATS"]'
    )
    with capture_logs() as logs:
        for _ in range(2):
            world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    logged = [(line["source_table"], line["column"]) for line in logs if line["event"] == "column_unknown"]
    assert logged == [("planes", "Naem")]


def test_two_tables_of_one_name_in_different_datasets_are_two() -> None:
    world = World(tables_file='[tables."s.planes"]\nname = "planes"\ndataset = "other"\n')
    world.tables.forbidden.add("other.planes")
    counts = world.apply(a_message(a_change(1)), a_message(a_change(2), header=a_header("s.planes")))

    assert world.names() == {1: "name 1"}
    assert world.leases.acked == ["a0"]
    assert counts.tables_in_trouble == ("other.planes",)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=12),
    st.data(),
)
def test_with_soft_delete_it_converges_and_never_goes_back(
    changes: list[tuple[int, bool]], data: st.DataObject
) -> None:
    made = [a_change(key, n, op="DELETE" if gone else "UPSERT") for n, (key, gone) in enumerate(changes, 1)]
    last = {key: (gone, None if gone else f"name {n}") for n, (key, gone) in enumerate(changes, 1)}
    repeated = data.draw(st.lists(st.sampled_from(made), max_size=5))
    delivered = data.draw(st.permutations([*made, *repeated]))
    cut = data.draw(st.integers(0, len(delivered)))
    world = World(tables_file=SOFT)
    world.apply(a_message(*delivered[:cut]))
    world.apply(a_message(*delivered[cut:]))

    assert deleted(world) == last


def eventful() -> list[Mapping[str, object]]:
    return [
        a_message(a_change(1, 1), a_change(2, 9)),
        a_message(a_change(1, 2), a_change(1, 3, name="refused"), a_change(7, seats="many")),
        a_message(a_change(3, 1, colour="red"), header=WIDER),
        a_message(data=b"garbage"),
        a_message(a_change(2, 10, op="DELETE")),
        a_message(a_change(5), header=AIRPORTS),
    ]


def refusing(world: World) -> World:
    world.writer.refuses = lambda _table, row: row["name"] == "refused"
    return world


def versions(world: World) -> set[tuple[int, str | None, str]]:
    rows: Sequence[Mapping[str, Any]] = world.writer.appended.get("planes_changelog", ())
    return {(row["id"], row["name"], row["_millrace_sequence"]) for row in rows}


def whole_run() -> World:
    """Return a world that has applied everything, without a crash."""
    world = refusing(World(tables_file=BOTH))
    world.apply(*eventful())
    return world


def outcome(world: World) -> object:
    """Return what there is in the end, whatever was repeated on the way."""
    return world.names(), world.names("airports"), versions(world), set(world.dead_letters.kept)


@pytest.mark.parametrize("crash_before", range(len(whole_run().effects.done)))
def test_a_crash_between_any_two_effects_loses_nothing_in_either_table(crash_before: int) -> None:
    """What is acked at the crash is in both; the rest comes again, and repeats in the history are the same rows."""
    whole = whole_run()
    world = refusing(World(Effects(crash_before), tables_file=BOTH))
    messages = eventful()
    with pytest.raises(CrashError):
        world.apply(*messages)
    if world.leases.acked:
        assert outcome(world) == outcome(whole)

    world.effects.dead, world.effects.crash_before = False, None
    world.restart()
    world.apply(*[message for index, message in enumerate(messages) if f"a{index}" not in world.leases.acked])
    assert outcome(world) == outcome(whole)


def test_the_same_messages_twice_and_in_another_order_change_nothing() -> None:
    world = whole_run()
    world.apply(*reversed(eventful()), *eventful())

    assert outcome(world) == outcome(whole_run())


def test_a_change_without_its_old_values_reaches_mirror_and_history_and_keeps_a_deleted_row_deleted() -> None:
    world = World(tables_file='[defaults]\nmode = "both"\nsoft_delete = true\n')
    packer = Packer()
    updated = structs.replace(a_change(1, 2, name="x" * 5_000_000), old=f'{{"name":"{"y" * 5_000_000}"}}')
    deleted_row = structs.replace(a_change(2, 3, op="DELETE"), old=f'{{"name":"{"y" * REQUEST_BYTES}"}}')
    _receipt, oversized = packer.add(a_header(), [("planes/0", updated), ("planes/1", deleted_row)])
    messages = [
        batch_message(message, request.ordering_key) for request in packer.requests() for message in request.messages
    ]
    counts = world.apply(a_message(a_change(2, 1)), *(a_message(data=message.data) for message in messages))

    assert oversized == []
    assert deleted(world) == {1: (False, "x" * 5_000_000), 2: (True, None)}
    history = [(row["id"], row["_millrace_old_values"]) for row in world.writer.appended["planes_changelog"]]
    assert history == [(2, None), (1, None), (2, None)]
    assert (counts.acked, world.reasons()) == (3, [])


def test_a_table_whose_key_no_bigquery_key_holds_has_a_history_alone_and_is_warned_of_once() -> None:
    header = a_header(columns=(("id", "TIME"), ("name", "STRING"), ("seats", "INT64")))
    assert World().apply(a_message(a_change(1), header=header)).dead_letters == {"key_not_representable": 1}

    world = World(tables_file='[defaults]\nunfit_key = "history"')
    with capture_logs() as logs:
        for sequence in (1, 2):
            counts = world.apply(a_message(a_change(1, sequence), header=header), a_message(header=header))
            assert (counts.dead_letters, counts.acked) == ({}, 2)

    assert changelog(world) == [("1", "name 1"), ("1", "name 2")]  # type: ignore[comparison-overlap]
    assert list(world.tables.there) == ["planes_changelog"]
    (logged,) = [line for line in logs if line["event"] == "table_without_mirror"]
    assert (logged["log_level"], logged["source_table"]) == ("warning", "planes")
    assert logged["why"].startswith("key column id of type TIME: BigQuery has no such keys")
