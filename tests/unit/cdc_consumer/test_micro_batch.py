"""The promises of one task of a micro-batch, on fakes: what is acked, what is dead-lettered, and in which order."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from services.cdc_consumer.app.stream.dead_letter_limit import DeadLetterLimit
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.stream.counts import Applied, Counts, TableNote
from shared.contracts.change_batch import decode_batch
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import parse_timestamp
from tests.builders import COMMITTED, a_change, a_header, a_message
from tests.fakes.effects import CrashError, Effects
from tests.unit.cdc_consumer.world import AIRPORTS, AT_ONCE, NOW, WIDER, World


@pytest.fixture
def world() -> World:
    return World()


def test_changes_are_in_the_table_and_their_messages_acked(world: World) -> None:
    counts = world.apply(a_message(a_change(1), a_change(2, sequence=5)), a_message(a_change(3), header=AIRPORTS))

    assert world.names() == {1: "name 1", 2: "name 5"}
    assert world.names("airports") == {3: "name 1"}
    assert world.leases.acked == ["a0", "a1"]
    committed = parse_timestamp(COMMITTED) // 1000
    note = TableNote(latest=Applied(committed, None, NOW // 1000))
    assert counts == Counts(
        messages=2,
        changes=3,
        rows_written=3,
        acked=2,
        tables={"airports": note, "planes": note},
        max_commit_timestamp=committed,
    )


def test_only_the_newest_change_of_a_key_is_written(world: World) -> None:
    counts = world.apply(
        a_message(a_change(1, sequence=2), a_change(1, sequence=3)), a_message(a_change(1, sequence=1))
    )

    assert world.names() == {1: "name 3"}
    assert (counts.rows_written, counts.superseded, counts.acked) == (1, 2, 2)
    assert world.writer.rows_sent == 1


def test_the_newest_wins_across_column_lists(world: World) -> None:
    counts = world.apply(
        a_message(a_change(1, sequence=7), a_change(2, sequence=1)),
        a_message(a_change(1, sequence=3, colour="red"), a_change(2, sequence=2, colour="blue"), header=WIDER),
    )

    assert world.names() == {1: "name 7", 2: "name 2"}
    assert counts.superseded == 2
    assert world.leases.acked == ["a0", "a1"]


def test_a_delete_removes_its_row(world: World) -> None:
    world.apply(a_message(a_change(1), a_change(2)))
    world.apply(a_message(a_change(1, sequence=2, op="DELETE")))

    assert world.names() == {2: "name 1"}


def test_an_announcement_makes_the_table_and_is_acked(world: World) -> None:
    counts = world.apply(a_message())

    assert "planes" in world.tables.there
    assert (counts.acked, counts.changes) == (1, 0)


def test_no_messages_is_no_effect(world: World) -> None:
    assert world.apply() == Counts()
    assert world.effects.done == []


def test_a_dead_letter_of_a_message_without_an_ordering_key_has_none_either(world: World) -> None:
    unordered = {"attributes": [("table", "planes"), ("bucket", "planes/3")], "ordering_key": "planes/3"}
    world.apply(dict(a_message(data=b"garbage")) | unordered)  # as the puller routes it

    (dead_letter,) = world.dead_letters.kept.values()
    assert (dead_letter.ordering_key, dict(dead_letter.attributes)["bucket"]) == ("", "planes/3")


def test_a_refused_change_is_a_dead_letter_and_the_next_newest_is_written_in_its_place(world: World) -> None:
    world.writer.refuses = lambda _table, row: row["name"] == "name 3"
    newest = a_message(a_change(1, sequence=3), a_change(2))
    counts = world.apply(a_message(a_change(1, sequence=1), a_change(1, sequence=2)), newest)

    assert world.names() == {1: "name 2", 2: "name 1"}
    assert world.leases.acked == ["a0", "a1"]
    assert (counts.rows_written, counts.superseded, counts.dead_letters) == (2, 1, {"refused_by_bigquery": 1})
    (dead_letter,) = world.dead_letters.kept.values()
    assert (dead_letter.table, dead_letter.key, dead_letter.failed_at) == ("planes", "[1]", NOW)
    assert dict(dead_letter.attributes) == {"table": "planes", "change_count": "2"}
    assert dead_letter.ordering_key == "planes/3"
    data = newest["data"]
    assert isinstance(data, bytes)
    assert dead_letter.data == decode_batch(data).cut(0)


def test_a_refused_change_across_column_lists_gives_way_too(world: World) -> None:
    world.writer.refuses = lambda _table, row: row.get("colour") == "red"
    world.apply(a_message(a_change(1, sequence=1)), a_message(a_change(1, sequence=2, colour="red"), header=WIDER))

    assert world.names() == {1: "name 1"}
    assert world.reasons() == [Reason.REFUSED_BY_BIGQUERY]
    assert world.leases.acked == ["a0", "a1"]


def test_every_change_of_a_key_may_be_refused(world: World) -> None:
    world.writer.refuses = lambda _table, _row: True
    counts = world.apply(a_message(a_change(1, sequence=1), a_change(1, sequence=2)))

    assert world.names() == {}
    assert (counts.rows_written, counts.superseded, counts.acked) == (0, 0, 1)
    assert len(world.dead_letters.kept) == 2


def test_poison_is_kept_as_it_came_and_its_neighbours_are_applied(world: World) -> None:
    garbage = a_message(data=b'{"not a batch": \xff}')
    counts = world.apply(garbage, a_message(a_change(1, seats="many"), a_change(2)))

    assert world.names() == {2: "name 1"}
    assert sorted(world.reasons(), key=lambda r: r.value) == [Reason.UNDECODABLE, Reason.VALUE_DOES_NOT_FIT]
    whole = next(
        dead_letter for dead_letter in world.dead_letters.kept.values() if dead_letter.reason is Reason.UNDECODABLE
    )
    assert (whole.data, whole.ordering_key) == (garbage["data"], "planes/3")
    assert counts.acked == 2


def test_a_table_with_another_key_sets_its_changes_aside_and_no_others(world: World) -> None:
    world.apply(a_message(a_change(1)))
    change = msgspec.structs.replace(a_change(), key='{"name":"x"}', row='{"id":"2","seats":"3"}')
    counts = world.apply(a_message(change, header=a_header(key=("name",))), a_message(a_change(4)))

    assert set(world.names()) == {1, 4}
    assert (counts.acked, counts.dead_letters) == (2, {"schema_conflict": 1})


def test_a_key_of_another_type_is_a_schema_conflict_also_for_an_announcement(world: World) -> None:
    world.apply(a_message(a_change(1)))
    other_type = a_header(columns=(("id", "STRING"), ("name", "STRING"), ("seats", "INT64")))
    counts = world.apply(a_message(a_change(2), header=other_type), a_message(header=other_type))

    assert counts.dead_letters == {"schema_conflict": 2}
    assert counts.acked == 2
    assert set(world.names()) == {1}


def test_while_bigquery_is_away_nothing_is_settled_and_then_everything_is(world: World) -> None:
    world.apply(a_message(a_change(9)))
    world.effects.done.clear()
    world.tables.away = 3
    world.writer.away = 20
    counts = world.apply(a_message(a_change(1)), a_message(data=b"garbage"), a_message(a_change(1), header=AIRPORTS))

    assert counts.acked == 3
    assert world.effects.done[0] == "keep leases"
    settling = ("ack", "keep 1 letters", "deferred", "give back")
    settled = [number for number, effect in enumerate(world.effects.done) if effect.startswith(settling)]
    assert any(effect.startswith("append") for effect in world.effects.done[: settled[0]])  # it was back by then
    assert world.effects.done[settled[0]] == "keep 1 letters"
    assert not any(effect.startswith(("give back", "defer")) for effect in world.effects.done)


def test_asked_to_stop_while_bigquery_is_away_everything_is_given_back_and_no_dead_letter_kept(world: World) -> None:
    world.writer.away = 1_000_000
    world.stop.request()

    with pytest.raises(TransientError):
        world.apply(a_message(a_change(1)), a_message(data=b"garbage"))

    assert world.leases.given_back == ["a0", "a1"]
    assert world.leases.acked == []
    assert world.dead_letters.kept == {}


def test_a_table_in_trouble_is_tried_again_for_a_while(world: World) -> None:
    world.start_anew(RetryLimits(table=timedelta(minutes=1), between_calls=AT_ONCE))
    world.writer.invisible["name"] = 2
    counts = world.apply(a_message(a_change(1)))

    assert world.names() == {1: "name 1"}
    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (1, 0, ())


def test_a_table_in_trouble_is_deferred_and_all_others_are_written_and_acked(world: World) -> None:
    world.tables.forbidden.add("planes")
    counts = world.apply(
        a_message(a_change(1)),
        a_message(a_change(1), header=AIRPORTS),
        a_message(a_change(2), delivery_attempt=3),
        a_message(a_change(3), delivery_attempt=50),
    )

    assert world.names("airports") == {1: "name 1"}
    assert world.leases.acked == ["a1"]
    seconds = {ack_id: delay.total_seconds() for ack_id, delay in world.leases.deferred_for.items()}
    assert seconds == {"a0": 30, "a2": 120, "a3": 600}
    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (1, 3, ("planes",))
    assert world.dead_letters.kept == {}
    assert world.effects.done.index("ack 1") < world.effects.done.index("defer 1")


def test_a_new_column_not_visible_yet_holds_up_only_the_messages_that_have_it(world: World) -> None:
    world.writer.invisible["colour"] = 1_000
    counts = world.apply(
        a_message(a_change(1, sequence=1), a_change(2, sequence=1)),
        a_message(a_change(1, sequence=2, colour="red"), header=WIDER),
    )

    assert world.names() == {1: "name 1", 2: "name 1"}  # the older one is written, for the newer one is not
    assert world.leases.acked == ["a0"]
    assert list(world.leases.deferred_for) == ["a1"]
    assert (counts.rows_written, counts.deferred) == (2, 1)


def test_dead_letters_of_a_message_that_is_deferred_wait_with_it(world: World) -> None:
    world.tables.forbidden.add("planes")
    world.apply(a_message(a_change(1, seats="many"), a_change(2)))

    assert world.dead_letters.kept == {}
    assert list(world.leases.deferred_for) == ["a0"]


def test_while_pubsub_is_away_for_dead_letters_and_acks_leases_are_kept_and_then_everything_is_settled(
    world: World,
) -> None:
    world.dead_letters.away = 5
    world.leases.away = 5
    world.tables.forbidden.add("airports")
    counts = world.apply(a_message(data=b"garbage"), a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (counts.acked, counts.deferred, counts.dead_letters) == (2, 1, {"undecodable": 1})
    assert world.effects.done[-4:] == ["keep 1 letters", "note letters of planes", "ack 2", "defer 1"]
    assert world.waits >= 8


def test_dead_letters_that_cannot_be_kept_leave_their_messages_unacked(world: World) -> None:
    world.dead_letters.away = 1_000
    world.stop.request()
    with pytest.raises(TransientError):
        world.apply(a_message(data=b"garbage"), a_message(a_change(1)))

    assert world.leases.acked == []
    assert world.leases.given_back == ["a0", "a1"]


def test_what_was_acked_is_not_given_back_when_something_fails_later(world: World) -> None:
    world.tables.forbidden.add("planes")

    def fail(_ack_ids: object, _delay: object) -> None:
        raise ValueError("a mistake of ours")

    world.leases.defer = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="a mistake of ours"):
        world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (world.leases.acked, world.leases.given_back) == (["a1"], ["a0"])


def test_a_failure_to_give_back_does_not_hide_what_led_to_it(world: World) -> None:
    world.leases.away = 1
    world.stop.request()
    world.memory.dead_letter_limit = DeadLetterLimit(0)
    with pytest.raises(MisconfiguredError, match="cannot be applied"):
        world.apply(a_message(data=b"garbage"))


def eventful() -> list[Mapping[str, object]]:
    return [
        a_message(a_change(1, sequence=1), a_change(2, sequence=9)),
        a_message(a_change(1, sequence=2), a_change(1, sequence=3, name="refused"), a_change(7, seats="many")),
        a_message(a_change(5), header=AIRPORTS),
        a_message(data=b"garbage"),
        a_message(a_change(2, sequence=10, op="DELETE")),
    ]


def refusing(world: World) -> None:
    world.writer.refuses = lambda _table, row: row["name"] == "refused"


def effects_of_a_whole_run() -> list[str]:
    world = World()
    refusing(world)
    world.apply(*eventful())
    return world.effects.done


@pytest.mark.parametrize("crash_before", range(len(effects_of_a_whole_run())))
def test_a_crash_between_any_two_effects_loses_nothing(crash_before: int) -> None:
    """Whatever is acked at the crash is durable already; the rest comes again, and everything is as without a crash."""
    world = World(Effects(crash_before))
    refusing(world)
    messages = eventful()
    with pytest.raises(CrashError):
        world.apply(*messages)

    assert world.leases.given_back == []
    if world.leases.acked:
        assert world.names() == {1: "name 2"}
        assert world.names("airports") == {5: "name 1"}
        assert len(world.dead_letters.kept) == 3

    world.effects.dead, world.effects.crash_before = False, None
    again = [message for index, message in enumerate(messages) if f"a{index}" not in world.leases.acked]
    world.apply(*again)
    assert world.names() == {1: "name 2"}
    assert world.names("airports") == {5: "name 1"}
    assert len(world.dead_letters.kept) == 3


def test_the_same_messages_twice_and_in_another_order_change_nothing(world: World) -> None:
    refusing(world)
    world.apply(*eventful())
    before: Any = world.names(), world.names("airports"), set(world.dead_letters.kept)
    world.apply(*reversed(eventful()), *eventful())

    assert (world.names(), world.names("airports"), set(world.dead_letters.kept)) == before


def test_counts_add_up() -> None:
    waits, well = TableNote(deferred="no permission"), TableNote(latest=Applied(5, 6, 7))
    one = Counts(
        messages=1, dead_letters={"undecodable": 2}, acked=1, tables={"a": waits, "c": well}, max_commit_timestamp=5
    )
    two = Counts(
        messages=2,
        dead_letters={"undecodable": 1, "too_large": 1},
        deferred=2,
        tables={"b": TableNote(unfit="bad_name: b"), "a": well, "c": TableNote(latest=Applied(4, 9, 9))},
    )

    assert one.plus(two) == Counts(
        messages=3,
        dead_letters={"undecodable": 3, "too_large": 1},
        acked=1,
        deferred=2,
        tables={
            "a": TableNote(deferred="no permission", latest=Applied(5, 6, 7)),
            "b": TableNote(unfit="bad_name: b"),
            "c": well,
        },
        max_commit_timestamp=5,
    )
    assert (one.plus(two).tables_in_trouble, one.plus(two).tables_well) == (("a",), ("b", "c"))
