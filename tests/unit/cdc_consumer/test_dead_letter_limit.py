"""Too much poison trips the dead-letter limit: the query stops before anything of it is dead-lettered, in any task."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.cdc_consumer.adapters.stream.reports import DriverPoisonLimit, receiving_reports
from services.cdc_consumer.adapters.stream.state_directory import MIRRORS, CrashCountsOnDisk, StateFile
from services.cdc_consumer.app.stream.dead_letter_limit import POISON_LIMIT, DeadLetterLimit
from services.cdc_consumer.core.stream.task_totals import Seen, TaskTotals
from services.cdc_consumer.ports import DurableBytes
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.service import dead_letter_limit
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import read_settings
from tests.builders import a_change, a_header, a_message
from tests.fakes.durable_bytes import FakeDurableBytes
from tests.unit.cdc_consumer.world import NEEDED, World


def garbage(count: int) -> list[Mapping[str, object]]:
    return [a_message(data=b"{ %d" % number) for number in range(count)]


def good(count: int) -> list[Mapping[str, object]]:
    return [a_message(a_change(number)) for number in range(count)]


def test_a_majority_that_cannot_be_decoded_is_a_bad_deploy_and_drains_nothing(world: World) -> None:
    with pytest.raises(MisconfiguredError, match=r"101 of the last 200 messages cannot be applied \(undecodable: 101"):
        world.apply(*garbage(101), *good(99))

    assert world.dead_letters.kept == {}
    assert world.leases.acked == []
    assert len(world.leases.deferred_for) == 200
    assert world.names() == {}


@pytest.mark.parametrize(("bad", "healthy"), [(150, 150), (100, 0)])
def test_half_of_the_messages_or_few_of_them_are_bad_records(world: World, bad: int, healthy: int) -> None:
    counts = world.apply(*garbage(bad), *good(healthy))

    assert counts.dead_letters == {"undecodable": bad}
    assert counts.acked == bad + healthy


def test_what_was_long_ago_counts_no_more(world: World) -> None:
    world.memory.dead_letter_limit = DeadLetterLimit(5)
    for _ in range(10):
        world.apply(*good(49), *garbage(1))
    world.apply(*garbage(5))
    for number in range(20):
        world.apply(a_message(data=b"%d" % number))
    with pytest.raises(MisconfiguredError, match="51 of the last 100 messages"):
        world.apply(*garbage(25))

    assert len(world.dead_letters.kept) < 40


def test_a_limit_of_none_lets_poison_pass_that_is_not_most_of_what_came(world: World) -> None:
    world.memory.dead_letter_limit = DeadLetterLimit(0)
    world.apply(*good(5))

    assert world.apply(*garbage(1), *good(1)).dead_letters == {"undecodable": 1}
    world.apply(*good(20))
    with pytest.raises(MisconfiguredError, match="31 of the last 51 messages"):
        world.apply(*garbage(31))


@pytest.mark.parametrize("messages", [3, 30])
def test_too_many_changes_that_cannot_be_applied_trip_the_limit_too_and_no_value_is_named(
    world: World, messages: int
) -> None:
    bad = [a_message(*[a_change(n, seats="secret") for n in range(1_200 // messages)]) for _ in range(messages)]
    with pytest.raises(MisconfiguredError, match=r"1200 of the last 1201 changes .*value_does_not_fit") as raised:
        world.apply(a_message(a_change(1)), *bad)

    assert "secret" not in str(raised.value)
    assert "POISON_LIMIT" in str(raised.value)
    assert (world.dead_letters.kept, world.leases.acked) == ({}, [])


def test_rows_that_bigquery_refuses_count_and_its_words_are_not_reported(world: World) -> None:
    world.memory.dead_letter_limit = DeadLetterLimit(2)
    world.writer.refuses = lambda _table, row: row["name"] == "name 7"
    with pytest.raises(MisconfiguredError, match=r"refused_by_bigquery: 25; the first: refused_by_bigquery\)"):
        world.apply(a_message(*[a_change(n, 7) for n in range(25)], a_change(99)))

    assert (world.dead_letters.kept, world.leases.acked) == ({}, [])


KEY_AS_TEXT = (("id", "STRING"), ("name", "STRING"), ("seats", "INT64"))


def conflicting(world: World, *tables: str) -> None:
    """Let tables have a key of another type than these come with."""
    for table in tables:
        world.apply(a_message(a_change(1), header=a_header(table, KEY_AS_TEXT)))


def many(table: str, count: int, seats: object = 7) -> Mapping[str, object]:
    return a_message(*[a_change(number, 2, seats=seats) for number in range(count)], header=a_header(table))


@pytest.fixture
def strict(world: World) -> World:
    """Return a world that lets a hundred changes pass."""
    world.memory.dead_letter_limit = DeadLetterLimit(10)
    return world


def test_the_conflict_of_the_busiest_table_stops_no_other(strict: World) -> None:
    conflicting(strict, "planes")
    for _ in range(5):
        counts = strict.apply(many("planes", 90), many("airports", 3))
        assert counts.dead_letters == {"schema_conflict": 90}
    assert counts.tables["planes"].unfit.startswith("schema_conflict: ")
    assert set(strict.names("airports")) == {0, 1, 2}


def test_nor_do_conflicts_of_all_tables(strict: World) -> None:
    conflicting(strict, "planes", "airports")

    assert strict.apply(many("planes", 150), many("airports", 150)).dead_letters == {"schema_conflict": 300}
    announcements = [a_message() for _ in range(15)]
    assert strict.apply(*announcements).dead_letters == {"schema_conflict": 15}


def test_a_conflict_hides_no_trip_of_the_limit(strict: World) -> None:
    conflicting(strict, "planes")
    strict.apply(many("planes", 500))
    with pytest.raises(MisconfiguredError, match=r"120 of the last 121 changes .*value_does_not_fit"):
        strict.apply(many("planes", 500), many("pilots", 60, seats="x"), many("airports", 60, seats="x"))


@pytest.mark.parametrize("others", [2, 200])
def test_one_table_of_several_whose_values_never_fit_trips_no_limit(strict: World, others: int) -> None:
    counts = strict.apply(many("planes", 300, seats="secret"), many("airports", others))

    assert counts.dead_letters == {"value_does_not_fit": 300}
    assert len(strict.names("airports")) == others
    for _ in range(5):  # and the other one is no more among the last ones
        assert strict.apply(many("planes", 900, seats="secret")).dead_letters == {"value_does_not_fit": 900}


def test_most_of_several_tables_trip_the_limit_however_busy_one_is(strict: World) -> None:
    with pytest.raises(MisconfiguredError, match=r"215 of the last 220 changes"):
        strict.apply(many("planes", 200, seats="x"), many("airports", 15, seats="x"), many("pilots", 5))

    assert (strict.dead_letters.kept, strict.leases.acked) == ({}, [])


@pytest.mark.parametrize("deliveries", [4, 5])
def test_poison_that_came_often_enough_to_be_handled_one_by_one_trips_the_limit_all_the_same(
    world: World, deliveries: int
) -> None:
    messages = [dict(one) | {"delivery_attempt": deliveries} for one in (*garbage(101), *good(20))]
    with pytest.raises(MisconfiguredError, match=r"101 of the last 1(01|21) messages cannot be applied"):
        world.apply(*messages)

    assert world.dead_letters.kept == {}
    assert set(world.names()) == set(range(20))
    assert (len(world.leases.acked), len(world.leases.deferred_for)) == (20, 101)
    assert world.crash_counts.over == {}


@pytest.fixture(params=["fake", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> DurableBytes:
    return FakeDurableBytes() if request.param == "fake" else StateFile(tmp_path, "flood", "s")


def test_what_is_kept_is_what_was_written_last(kept: DurableBytes) -> None:
    assert kept.read() is None
    kept.write(b"a")
    kept.write(b"b")
    assert kept.read() == b"b"


def test_restarts_do_not_drain_the_topic_by_and_by(world: World, kept: DurableBytes) -> None:
    for process in range(5):
        world.restart()
        world.memory.dead_letter_limit = DeadLetterLimit(20, kept)
        if process == 0:
            for message in garbage(20):
                world.apply(message)
        with pytest.raises(MisconfiguredError, match="21 of the last 21 messages"):
            world.apply(a_message(data=b"one too many"))
    assert len(world.dead_letters.kept) == 20

    world.restart()
    world.memory.dead_letter_limit = DeadLetterLimit(20, kept)
    world.apply(*good(30))
    assert world.apply(a_message(data=b"one alone")).dead_letters == {"undecodable": 1}
    world.memory.dead_letter_limit = DeadLetterLimit(60, kept)
    world.apply(*garbage(39))


def poison(messages: int) -> TaskTotals:
    return TaskTotals(messages=Seen({"": messages}, {"": messages}, {"undecodable": messages}))


def test_tasks_that_ask_at_the_same_time_share_the_limit_and_what_they_were_admitted_counts_once() -> None:
    limit = DeadLetterLimit(100)
    limit.judge(poison(60), 1)
    with pytest.raises(MisconfiguredError, match="120 of the last 120 messages"):
        limit.judge(poison(60), 2)
    limit.judge(poison(40), 2)
    limit.remember(poison(60), 1)
    limit.judge(TaskTotals(), 2)  # gives back what it was admitted
    limit.judge(poison(40), 3)
    with pytest.raises(MisconfiguredError, match="101 of the last 101 messages"):
        limit.judge(poison(1), 2)


def test_two_hundred_processes_that_ask_at_once_and_ten_restarts_pass_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0
    for start in range(10):
        with receiving_reports(lambda _report: None, DeadLetterLimit(100, StateFile(tmp_path, "flood", "s"))) as server:
            tasks, admitted = DriverPoisonLimit(server.listen("127.0.0.1")), []
            for process in range(start * 1_000, start * 1_000 + 200):  # each has a connection of its own
                monkeypatch.setattr(os, "getpid", lambda process=process: 1_000_000 + process)
                with contextlib.suppress(MisconfiguredError):
                    tasks.judge(poison(7))
                    admitted.append(process)
            passed += 7 * len(admitted)
            for process in admitted[::2]:  # the others end over it
                monkeypatch.setattr(os, "getpid", lambda process=process: 1_000_000 + process)
                tasks.remember(poison(7))
    assert passed == 98


def test_the_next_process_of_the_consumer_counts_on(tmp_path: Path) -> None:
    settings = read_settings(Settings, NEEDED | {"CHECKPOINT_LOCATION": str(tmp_path)})
    before = dead_letter_limit(settings)
    before.judge(poison(POISON_LIMIT))
    before.remember(poison(POISON_LIMIT))

    with pytest.raises(MisconfiguredError, match=f"{POISON_LIMIT + 1} of the last {POISON_LIMIT + 1} messages"):
        dead_letter_limit(settings).judge(poison(1))


def test_changes_are_counted_on_too(strict: World, kept: DurableBytes) -> None:
    strict.memory.dead_letter_limit = DeadLetterLimit(10, kept)
    strict.apply(many("planes", 100, seats="x"))
    strict.restart()
    strict.memory.dead_letter_limit = DeadLetterLimit(10, kept)
    with pytest.raises(MisconfiguredError, match="101 of the last 101 changes"):
        strict.apply(many("planes", 1, seats="x"))


@pytest.mark.parametrize("data", [b"", b"[1]", b'[[{"a": "b"}, {}], [{}, {}]]'])
def test_what_is_not_understood_of_it_is_passed_over(data: bytes) -> None:
    kept = FakeDurableBytes()
    kept.write(data)
    limit = DeadLetterLimit(10, kept)
    limit.judge(poison(10))
    limit.remember(poison(10))
    with pytest.raises(MisconfiguredError, match="11 of the last 11 messages"):
        limit.judge(poison(1))


def test_a_file_that_is_an_hour_old_or_of_others_or_cannot_be_written_reports_nothing(tmp_path: Path) -> None:
    kept = StateFile(tmp_path, "flood", "s")
    kept.write(b"a")
    assert StateFile(tmp_path, "flood", "s").read() == b"a"
    assert StateFile(tmp_path, "flood", "another").read() is None
    (file,) = tmp_path.iterdir()
    os.utime(file, (time.time() - 3_700, time.time() - 3_700))
    assert kept.read() is None

    for directory in (None, tmp_path / "nowhere"):
        nowhere = StateFile(directory, "flood", "s")
        nowhere.write(b"a")
        assert nowhere.read() is None


def test_what_is_kept_for_good_is_read_and_left_alone_however_old_it_is(tmp_path: Path) -> None:
    kept = StateFile(tmp_path, MIRRORS, "s", valid_for=None)
    kept.write(b"a")
    (file,) = tmp_path.iterdir()
    os.utime(file, (0, 0))
    CrashCountsOnDisk(tmp_path, "s")
    assert kept.read() == b"a"
