"""The promises of one task of a micro-batch, on fakes: what is acked, what is dead-lettered, and in which order.

And what it says of each table: running, deferred or refused, and times of its latest change.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.app.stream.dead_letter_limit import DeadLetterLimit
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.core.stream.counts import Applied, Counts, Report, TableNote
from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.change_batch import Change, Content, Header, decode_batch
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.safe_age import SAFE_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from tests.builders import COMMITTED, PLANE_COLUMNS, a_change, a_header, a_message, messages_table, table_definition
from tests.unit.cdc_consumer.status_world import World as StatusWorld
from tests.unit.cdc_consumer.world import AIRPORTS, AT_ONCE, NOW, PUBLISHED, WIDER, World

PLANES, OF_AIRPORTS = (frozenset({table_definition(one).column_list}) for one in (a_header(), AIRPORTS))


def test_changes_are_in_the_table_and_their_messages_acked(world: World) -> None:
    counts = world.apply(a_message(a_change(1), a_change(2, sequence=5)), a_message(a_change(3), header=AIRPORTS))

    assert world.names() == {1: "name 1", 2: "name 5"}
    assert world.names("airports") == {3: "name 1"}
    assert world.leases.acked == ["a0", "a1"]
    committed = parse_timestamp(COMMITTED) // 1000
    latest = Applied(committed, None, NOW // 1000)
    assert counts == Counts(
        messages=2,
        changes=3,
        rows_written=3,
        acked=2,
        tables={
            "airports": TableNote(latest=latest, taken=OF_AIRPORTS),
            "planes": TableNote(latest=latest, taken=PLANES),
        },
        max_commit_timestamp=committed,
    )


def test_an_announcement_makes_the_table_and_is_acked(world: World) -> None:
    counts = world.apply(a_message())

    assert "planes" in world.tables.there
    assert (counts.acked, counts.changes, counts.tables) == (1, 0, {"planes": TableNote(taken=PLANES)})


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


def test_another_key_or_one_of_another_type_is_a_schema_conflict_also_for_an_announcement(world: World) -> None:
    world.apply(a_message(a_change(1)))
    other_type = a_header(columns=(("id", "STRING"), ("name", "STRING"), ("seats", "INT64")))
    named = msgspec.structs.replace(a_change(), key='{"name":"x"}', row='{"id":"2","seats":"3"}')
    counts = world.apply(
        a_message(a_change(2), header=other_type),
        a_message(header=other_type),
        a_message(named, header=a_header(key=("name",))),
        a_message(a_change(4)),
    )

    assert counts.dead_letters == {"schema_conflict": 3}
    assert counts.acked == 4
    assert set(world.names()) == {1, 4}


def test_while_bigquery_is_unavailable_nothing_is_settled_and_then_everything_is(world: World) -> None:
    world.apply(a_message(a_change(9)))
    world.effects.done.clear()
    world.tables.unavailable = 3
    world.writer.unavailable = 20
    counts = world.apply(a_message(a_change(1)), a_message(data=b"garbage"), a_message(a_change(1), header=AIRPORTS))

    assert counts.acked == 3
    assert world.effects.done[0] == "keep leases"
    settling = ("ack", "keep 1 dead letters", "defer", "release")
    settled = [number for number, effect in enumerate(world.effects.done) if effect.startswith(settling)]
    assert any(effect.startswith("append") for effect in world.effects.done[: settled[0]])  # it was back by then
    assert world.effects.done[settled[0]] == "keep 1 dead letters"
    assert not any(effect.startswith(("release", "defer")) for effect in world.effects.done)


def test_asked_to_stop_while_bigquery_is_unavailable_everything_is_released_and_no_dead_letter_kept(
    world: World,
) -> None:
    world.writer.unavailable = 1_000_000
    world.stop.request()

    with pytest.raises(TransientError):
        world.apply(a_message(a_change(1)), a_message(data=b"garbage"))

    assert world.leases.released == ["a0", "a1"]
    assert world.leases.acked == []
    assert world.dead_letters.kept == {}


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
    note = counts.tables["planes"]
    assert note.deferred
    assert note.latest is not None


def test_dead_letters_of_a_message_that_is_deferred_wait_with_it(world: World) -> None:
    world.tables.forbidden.add("planes")
    world.apply(a_message(a_change(1, seats="many"), a_change(2)))

    assert world.dead_letters.kept == {}
    assert list(world.leases.deferred_for) == ["a0"]


def test_while_pubsub_is_unavailable_for_dead_letters_and_acks_leases_are_kept_and_then_everything_is_settled(
    world: World,
) -> None:
    world.dead_letters.unavailable = 5
    world.leases.unavailable = 5
    world.tables.forbidden.add("airports")
    counts = world.apply(a_message(data=b"garbage"), a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (counts.acked, counts.deferred, counts.dead_letters) == (2, 1, {"undecodable": 1})
    assert world.effects.done[-4:] == ["keep 1 dead letters", "note dead letters of planes", "ack 2", "defer 1"]
    assert world.waits >= 8


def test_dead_letters_that_cannot_be_kept_leave_their_messages_unacked(world: World) -> None:
    world.dead_letters.unavailable = 1_000
    world.stop.request()
    with pytest.raises(TransientError):
        world.apply(a_message(data=b"garbage"), a_message(a_change(1)))

    assert world.leases.acked == []
    assert world.leases.released == ["a0", "a1"]


def test_while_dead_letters_may_not_be_kept_their_messages_wait_and_no_others(world: World) -> None:
    def refuse(_dead_letters: object) -> None:
        raise MisconfiguredError("pubsub-refused", "publish dead letters: PERMISSION_DENIED: grant a role")

    kept, world.dead_letters.keep = world.dead_letters.keep, refuse  # type: ignore[assignment,method-assign]
    messages = a_message(data=b"garbage"), a_message(a_change(1), header=AIRPORTS)
    with capture_logs() as logs:
        counts = world.apply(*messages, a_message(a_change(1, seats="many")))

    assert (world.leases.acked, world.leases.released) == (["a1"], [])
    assert (list(world.leases.deferred_for), counts.deferred) == (["a0", "a2"], 2)
    assert (counts.dead_letters, counts.not_kept) == ({}, 2)
    assert "its dead letters are not kept" in counts.tables["planes"].stuck
    (line,) = [one for one in logs if one["event"] == "dead_letters_not_kept"]
    assert (line["dead_letters"], "grant a role" in line["error"]) == (2, True)
    assert world.tables.dead_letters == {}

    status = StatusWorld()
    status.take(counts)
    status.take(world.apply(a_message(a_change(2))))
    assert status.states() == {"airports": "running", "planes": "deferred"}, "others of the table do not hide it"

    world.dead_letters.keep = kept  # type: ignore[method-assign]
    assert world.apply(*messages).dead_letters == {"undecodable": 1}


@pytest.mark.parametrize(
    ("tables_file", "key", "name"),
    [("", "", "(unknown)"), ('[tables.planes]\nmode = "history"\n', "planes/3", "planes_changelog")],
)
def test_status_shows_what_waits_for_its_dead_letter_also_without_a_mirror(
    tables_file: str, key: str, name: str
) -> None:
    def refuse(_dead_letters: object) -> None:
        raise MisconfiguredError("pubsub-refused", "publish dead letters: NOT_FOUND")

    world, status = World(tables_file=tables_file), StatusWorld()
    world.dead_letters.keep = refuse  # type: ignore[assignment,method-assign]
    status.take(world.apply(dict(a_message(data=b"garbage")) | {"ordering_key": key}))
    assert status.states() == {name: "deferred"}


def test_what_was_acked_is_not_released_when_something_fails_later(world: World) -> None:
    world.tables.forbidden.add("planes")

    def fail(_ack_ids: object, _delay: object) -> None:
        raise ValueError("a mistake of ours")

    world.leases.defer = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="a mistake of ours"):
        world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (world.leases.acked, world.leases.released) == (["a1"], ["a0"])


def test_a_failure_to_give_back_does_not_hide_what_led_to_it(world: World) -> None:
    world.leases.unavailable = 1
    world.stop.request()
    world.memory.dead_letter_limit = DeadLetterLimit(0)
    with pytest.raises(MisconfiguredError, match="cannot be applied"):
        world.apply(a_message(data=b"garbage"))


def test_a_column_list_whose_changes_wait_anywhere_is_not_taken() -> None:
    one, two = TableNote(failing=frozenset("ab"), taken=frozenset("c")), TableNote(taken=frozenset("ad"))
    assert one.plus(two) == two.plus(one) == TableNote(failing=frozenset("ab"), taken=frozenset("cd"))


def test_counts_add_up() -> None:
    waits, healthy = TableNote(deferred="no permission"), TableNote(latest=Applied(5, 6, 7))
    one = Counts(
        messages=1, dead_letters={"undecodable": 2}, acked=1, tables={"a": waits, "c": healthy}, max_commit_timestamp=5
    )
    two = Counts(
        messages=2,
        dead_letters={"undecodable": 1, "too_large": 1},
        deferred=2,
        tables={"b": TableNote(unfit="bad_name: b"), "a": healthy, "c": TableNote(latest=Applied(4, 9, 9))},
    )

    assert one.plus(two) == Counts(
        messages=3,
        dead_letters={"undecodable": 3, "too_large": 1},
        acked=1,
        deferred=2,
        tables={
            "a": TableNote(deferred="no permission", latest=Applied(5, 6, 7)),
            "b": TableNote(unfit="bad_name: b"),
            "c": healthy,
        },
        max_commit_timestamp=5,
    )
    assert one.plus(two).tables_in_trouble == ("a",)


# Changes that come again after days: what a task can no longer be sure of.


LONG_AGO = SAFE_AGE + timedelta(seconds=1)


def a_message_from(age: timedelta, delivery: int, **more: object) -> Mapping[str, object]:
    published = PUBLISHED - age
    committed = format_timestamp(Nanoseconds(int(published.timestamp()) * 1_000_000_000))
    message = a_message(a_change(1, committed=committed), delivery_attempt=delivery, **more)  # type: ignore[arg-type]
    return {**message, "publish_time": published}


def reported_late(world: World, *messages: Mapping[str, object]) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        assert world.apply(*messages).dead_letters == {}
    return [(one["log_level"], one["table"]) for one in logs if one["event"] == "changes_came_again_late"]


def test_changes_that_come_again_after_days_are_applied_and_reported_once_for_each_table_and_process(
    world: World,
) -> None:
    assert reported_late(world, a_message_from(LONG_AGO, 2), a_message_from(timedelta(0), 2, header=AIRPORTS)) == [
        ("warning", "planes")
    ]
    assert world.names() == {1: "name 1"}
    again = a_message_from(LONG_AGO, 5), a_message_from(LONG_AGO, 2, header=AIRPORTS)
    assert reported_late(world, *again) == [("warning", "airports")]
    assert reported_late(world, *again) == []
    world.restart()
    assert len(reported_late(world, *again)) == 2


@pytest.mark.parametrize(("age", "delivery"), [(LONG_AGO, 1), (SAFE_AGE, 2)])
def test_what_comes_for_the_first_time_or_before_deletes_are_forgotten_is_nothing_to_report(
    age: timedelta, delivery: int
) -> None:
    assert reported_late(World(), a_message_from(age, delivery)) == []


def test_a_history_is_none_the_worse_for_it() -> None:
    assert reported_late(World(tables_file='[defaults]\nmode = "history"'), a_message_from(LONG_AGO, 2)) == []


# What a task says of each table.


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
        "planes": TableNote(
            latest=Applied(committed, parse_timestamp("2026-11-21T12:00:02Z") // 1000, NOW // 1000), taken=PLANES
        )
    }


def test_while_a_table_is_known_to_be_in_trouble_each_task_reports_the_real_why(world: World) -> None:
    world.tables.forbidden.add("planes")
    notes = [world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS)).tables for _ in range(5)]

    assert [note["planes"].deferred for note in notes] == ["table planes: permission denied"] * 5
    assert [note["airports"].deferred for note in notes] == [""] * 5


def test_what_is_reported_of_trouble_is_what_was_reported_last_and_its_code_where_words_may_quote_a_row(
    world: World,
) -> None:
    definition = decode_messages(messages_table(a_message(a_change(1))), NOW).tables[0].definition
    known, now = world.memory.tables, world.clock.monotonic()
    assert known.latest_error(definition) is None

    known.began(definition, now, now, TableTroubleError("INTERNAL", suspected=True))
    error = known.latest_error(definition)
    assert error is not None
    assert (error.shown, error.suspected) == ("INTERNAL", True)

    known.began(definition, now, now, TableTroubleError("row 'secret'", code="PERMISSION_DENIED"))
    error = known.latest_error(definition)
    assert error is not None
    assert (str(error), error.shown, error.suspected) == ("PERMISSION_DENIED", "PERMISSION_DENIED", False)


def test_what_waits_reports_when_it_comes_again(world: World) -> None:
    world.tables.forbidden.add("planes")
    late = a_message(a_change(1), delivery_attempt=3)
    counts = world.apply(late, a_message(a_change(2)), a_message(a_change(1), header=AIRPORTS))

    assert counts.tables["planes"].again_at == (NOW + 120_000_000_000) // 1000
    assert counts.tables["airports"].again_at is None
    assert counts.plus(world.apply(a_message(a_change(1)))).tables["planes"].again_at == (NOW + 120_000_000_000) // 1000


def test_a_row_that_is_stuck_is_reported_of_its_table_which_is_healthy_until_it_is_a_dead_letter(world: World) -> None:
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
    assert counts.tables["airports"] == TableNote(latest=counts.tables["airports"].latest, taken=OF_AIRPORTS)


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
def test_a_table_that_was_refused_is_healthy_once_it_fits_wherever_its_changes_go(
    options: str, content: Content, name: str, also: Collection[str]
) -> None:
    world = World(tables_file=f"[tables.planes]\n{options}\n")
    status = ConsumerStatus(world.clock, lambda _datasets: (), lambda _mirror: None)

    def states(header: Header) -> dict[str, str]:
        status.take(Report(counts=world.apply(a_message(a_change(1), header=header))))
        tables: Any = status.document(ready=True, alive=True)["tables"]
        return {one["table"]: one["state"] for one in tables}

    fitting = msgspec.structs.replace(a_header(), content=content)
    invalid = msgspec.structs.replace(a_header(columns=(*PLANE_COLUMNS, ("x", "STRUCT<>"))), content=content)
    assert states(invalid) == {name: "refused"}
    assert states(fitting) == dict.fromkeys({name, *also}, "running")


def test_while_a_service_is_waited_for_the_tables_that_wait_are_named(world: World) -> None:
    world.restart(RetryLimits(between_calls=AT_ONCE))
    world.writer.unavailable = 10
    world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert {table for table, _why in world.waited} >= {"planes", "airports"}
    assert all(why for table, why in world.waited if table)


def test_words_are_short_enough_for_a_report() -> None:
    assert len(TableNote(deferred="x" * 10_000, unfit="y" * 10_000).deferred) == 600


# Heartbeats of readers: shown, acked, and applied to no table.


SOURCE = a_header().source
MICROS = NOW // 1_000
DAY = 86_400_000_000


def a_heartbeat(*changes: Change, until: int, source: str = SOURCE) -> Mapping[str, object]:
    header = structs.replace(a_header(), published_until=until, source=source)
    return {**a_message(*changes, header=header), "publish_time": PUBLISHED}


def test_the_newest_heartbeat_is_reported_and_all_are_acked_and_make_no_table(world: World) -> None:
    counts = world.apply(a_heartbeat(until=MICROS - 60), a_heartbeat(until=MICROS), a_heartbeat(until=MICROS - 90))

    assert counts.heartbeats == {SOURCE: MICROS}
    assert (counts.acked, counts.messages, dict(counts.tables)) == (3, 3, {})
    assert world.tables.there == {}
    assert world.dead_letters.kept == {}


def test_a_heartbeat_beside_changes_does_not_hinder_them_and_one_with_changes_is_none(world: World) -> None:
    counts = world.apply(a_heartbeat(until=MICROS), a_message(a_change(1)), a_heartbeat(a_change(2), until=MICROS + 1))

    assert counts.heartbeats == {SOURCE: MICROS}
    assert (counts.acked, counts.rows_written) == (3, 2)


def test_a_heartbeat_from_the_future_or_of_an_endless_source_says_nothing(world: World) -> None:
    counts = world.apply(a_heartbeat(until=MICROS + 2 * DAY), a_heartbeat(until=MICROS, source="s" * 100_000))

    assert counts.heartbeats == {}
    assert counts.acked == 2
