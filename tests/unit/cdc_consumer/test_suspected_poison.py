"""Messages that crash the process: found by the crashes over them, and never mistaken for those that merely wait.

A message that needs more memory than there is becomes a dead letter in the end; the rest is applied at once.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.stream.state_directory import CrashCountsOnDisk, choose_state_directory
from services.cdc_consumer.app.stream import micro_batch
from services.cdc_consumer.app.stream.suspected_poison import is_fatal
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.ports import CrashCounts
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.runtime.stop import Stop
from tests.builders import a_change, a_message
from tests.fakes.crash_counts import FakeCrashCounts
from tests.fakes.effects import CrashError
from tests.unit.cdc_consumer.world import AIRPORTS, AT_ONCE, World

MINUTE = timedelta(minutes=1)


class Deliveries:
    """A subscription of some messages: each time a new process has all that are left; it may end over those it has."""

    def __init__(self, world: World, messages: Mapping[str, Any], age: timedelta = AT_ONCE) -> None:
        self.world = world
        self.pending = dict(messages)
        self.published = datetime.fromtimestamp(world.clock.time / 1e9, tz=UTC) - age
        self.times = 0

    def deliver(self, after: timedelta) -> bool:
        """Let a new process have what is left; tell whether it lives."""
        world, names = self.world, list(self.pending)
        self.times += 1
        world.clock.pass_time(after)
        world.effects.dead = False
        world.restart()
        world.leases.kept.clear()
        world.leases.acked.clear()
        messages = [
            dict(self.pending[name])
            | {"message_id": name, "delivery_attempt": self.times, "publish_time": self.published}
            for name in names
        ]
        try:
            world.apply(*messages)
        except (CrashError, RuntimeError, TransientError):
            return False
        finally:
            for ack_id in world.leases.acked:
                del self.pending[names[int(ack_id[1:])]]
        return True

    def loop(self, most: int) -> int:
        """Restart as Kubernetes does, later after each crash and 300 s later at most; return how often it crashed."""
        crashes = 0
        while self.pending and self.times < most:
            back_off = min(timedelta(seconds=10) * (1 << min(crashes, 10)), timedelta(seconds=300))
            crashes += not self.deliver(back_off + timedelta(seconds=20))
        return crashes


@pytest.fixture(params=["signal", "an error nobody knows"])
def killing(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let decoding a message that holds a certain word end the process."""

    def decode_or_die(table: Any, now: Any, plan: Any, **how: Any) -> Any:
        if any(b"fatal" in data for data in table["data"].to_pylist()):
            if request.param != "signal":
                raise RuntimeError("nobody knows this")
            world.effects.dead = True
            raise CrashError("killed")
        return decode_messages(table, now, plan, **how)

    monkeypatch.setattr(micro_batch, "decode_messages", decode_or_die)


@pytest.mark.usefixtures("killing")
@pytest.mark.parametrize("age", [AT_ONCE, timedelta(hours=8)], ids=["new", "eight hours old"])
@pytest.mark.parametrize("place", range(5))
def test_a_message_that_ends_every_process_is_dead_lettered_after_five_and_the_rest_is_applied(
    world: World, place: int, age: timedelta
) -> None:
    messages = {f"m{n}": a_message(a_change(n)) for n in range(5)}
    messages[f"m{place}"] = a_message(data=b"fatal")
    deliveries = Deliveries(world, messages, age)

    assert deliveries.loop(most=5) == 5
    assert set(deliveries.pending) == {f"m{place}"}
    assert set(world.names()) == set(range(5)) - {place}
    assert world.dead_letters.kept == {}

    assert deliveries.loop(most=100) == 0
    assert deliveries.pending == {}
    (dead_letter,) = world.dead_letters.kept.values()
    assert (dead_letter.data, dead_letter.reason) == (b"fatal", Reason.RETRIES_EXHAUSTED)
    assert world.crash_counts.over == {}


@pytest.mark.usefixtures("killing")
@pytest.mark.parametrize("wait_for", ["its dead letter", "the label of its mirror"])
def test_while_its_dead_letter_cannot_be_kept_or_noted_it_ends_no_further_process(
    world: World, monkeypatch: pytest.MonkeyPatch, wait_for: str
) -> None:
    fatal = {**a_message(data=b"fatal"), "ordering_key": "planes/1"}
    deliveries = Deliveries(world, {"m0": a_message(a_change(0)), "m1": fatal})
    assert deliveries.loop(most=5) == 5

    with monkeypatch.context() as patched:
        if wait_for == "its dead letter":
            patched.setattr(world.dead_letters, "keep", _refuse_for_good)
        else:
            world.tables.forbidden = {"planes"}
        assert all(deliveries.deliver(timedelta(seconds=600)) for _ in range(10))
        assert set(deliveries.pending) == {"m1"}
    world.tables.forbidden = set()
    assert deliveries.deliver(timedelta(seconds=600))
    assert deliveries.pending == {}
    assert [one.data for one in world.dead_letters.kept.values()] == [b"fatal"]
    assert world.crash_counts.over == {}


@pytest.mark.usefixtures("killing")
@pytest.mark.parametrize("places", [{0}, {149}, {30, 130}])
def test_among_many_that_came_often_those_that_end_a_process_are_found_and_no_neighbour_becomes_a_dead_letter(
    world: World, places: set[int], tmp_path: Path
) -> None:
    messages = {f"m{n:03}": a_message(a_change(n)) for n in range(150)}
    fatal = {f"m{n:03}": a_message(data=b"fatal %d" % n) for n in places}
    deliveries = Deliveries(world, messages | fatal)
    world.crash_counts = CrashCountsOnDisk(tmp_path, "s")  # type: ignore[assignment]
    assert deliveries.loop(most=100) <= 2 + 3 * len(places)

    assert deliveries.pending == {}
    assert {dead_letter.data for dead_letter in world.dead_letters.kept.values()} == {
        one["data"] for one in fatal.values()
    }
    assert set(world.names()) == set(range(150)) - places
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("healthy", [True, False], ids=["healthy again", "in trouble"])
def test_hundreds_that_were_deferred_often_cost_few_calls(world: World, healthy: bool) -> None:
    messages = [a_message(a_change(n), delivery_attempt=9) for n in range(400)]
    if not healthy:
        world.tables.forbidden.add("planes")
        world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))
    world.effects.done.clear()
    counts = world.apply(*messages)

    assert (counts.acked, counts.deferred) == ((400, 0) if healthy else (0, 400))
    calls = [effect for effect in world.effects.done if effect.startswith(("append", "ack", "defer"))]
    assert len(calls) == (8 if healthy else 4), calls
    assert world.crash_counts.over == {}


def test_a_table_in_trouble_for_a_day_has_no_such_message(world: World) -> None:
    world.tables.forbidden.add("planes")
    deliveries = Deliveries(world, {"m1": a_message(a_change(1))})
    passed = AT_ONCE
    while passed < timedelta(days=1):
        assert deliveries.deliver(AT_ONCE)
        (deferred,) = world.leases.deferred_for.values()
        world.clock.pass_time(deferred)
        passed += deferred

    assert deliveries.times > 100
    assert (world.dead_letters.kept, world.crash_counts.over) == ({}, {})
    world.tables.forbidden.clear()
    assert deliveries.deliver(MINUTE)
    assert world.names() == {1: "name 1"}


def test_messages_that_are_released_in_quick_succession_are_none(world: World) -> None:
    deliveries = Deliveries(world, {f"m{n}": a_message(a_change(n)) for n in range(3)})
    world.stop.request()
    world.writer.unavailable = 1_000_000
    for _ in range(50):
        assert not deliveries.deliver(timedelta(seconds=1))
    world.stop, world.writer.unavailable = Stop(), 0

    assert deliveries.deliver(timedelta(seconds=1))
    assert (set(world.names()), world.dead_letters.kept, world.crash_counts.over) == ({0, 1, 2}, {}, {})


def test_what_ends_a_process_that_waits_for_a_service_is_not_the_message(world: World) -> None:
    deliveries = Deliveries(world, {"m1": a_message(a_change(1))})
    world.writer.unavailable = 1_000_000

    def die() -> None:
        world.effects.dead = True
        raise CrashError("out of memory, elsewhere")

    world.meanwhile = die
    assert deliveries.loop(most=50) == 50
    world.writer.unavailable = 0
    assert deliveries.loop(most=51) == 0
    assert (world.names(), world.dead_letters.kept, world.crash_counts.over) == ({1: "name 1"}, {}, {})


@pytest.mark.usefixtures("killing")
def test_what_a_process_outlives_once_begins_to_count_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries = Deliveries(world, {"m1": a_message(data=b"fatal")})
    assert deliveries.loop(most=4) == 4
    assert set(world.crash_counts.over.values()) == {2}
    with monkeypatch.context() as patched:  # with more memory, say; and its table is in trouble
        patched.setattr(micro_batch, "decode_messages", decode_messages)
        world.tables.forbidden.add("planes")
        deliveries.pending["m1"] = a_message(a_change(1))
        assert deliveries.deliver(MINUTE)
        assert world.crash_counts.over == {}
    assert world.dead_letters.kept == {}


@pytest.mark.usefixtures("killing")
def test_where_crashes_are_not_counted_many_quick_deliveries_tell(world: World) -> None:
    world.crash_counts.unknown = True
    deliveries = Deliveries(world, {"m1": a_message(data=b"fatal"), "m2": a_message(a_change(2), header=AIRPORTS)})
    for _ in range(19):
        assert not deliveries.deliver(MINUTE)
    assert set(deliveries.pending) == {"m1"}
    assert world.dead_letters.kept == {}

    assert deliveries.deliver(MINUTE)
    assert world.reasons() == [Reason.RETRIES_EXHAUSTED]


def test_a_message_that_was_deferred_so_often_is_not_suspected_of_that() -> None:
    limits, age = RetryLimits(), timedelta(0)
    for deliveries in range(1, 101):
        assert not is_fatal(deliveries, age.total_seconds(), limits)
        age += limits.deferral_at(deliveries)


@pytest.fixture(params=["fake", "disk"])
def crash_counts(request: pytest.FixtureRequest, tmp_path: Path) -> CrashCounts:
    return FakeCrashCounts() if request.param == "fake" else CrashCountsOnDisk(tmp_path, "s")


def test_counts_of_several_messages_are_kept_together_and_forgotten_together_or_each(
    crash_counts: CrashCounts,
) -> None:
    crash_counts.set_counts(["a", "b", "c"], 1)
    assert crash_counts.read_counts(["c", "b", "a", "d"]) == [1, 1, 1, 0]
    crash_counts.set_counts(["b"], 2)
    assert crash_counts.read_counts(["a", "b", "c"]) == [1, 2, 1]
    crash_counts.set_counts(["b"], 0)
    assert crash_counts.read_counts(["a", "b", "c"]) == [1, 0, 1]
    crash_counts.set_counts(["a", "c"], 0)
    assert crash_counts.read_counts(["a", "b", "c"]) == [0, 0, 0]


def test_one_file_is_enough_for_several_and_is_gone_with_the_last_of_them(tmp_path: Path) -> None:
    crash_counts, names = CrashCountsOnDisk(tmp_path, "s"), [str(number) for number in range(100)]
    crash_counts.set_counts(names, 1)
    (file,) = tmp_path.iterdir()
    assert CrashCountsOnDisk(tmp_path, "s").read_counts(names) == [1] * 100
    for name in names[1:]:
        crash_counts.set_counts([name], 0)
    assert list(tmp_path.iterdir()) == [file]
    assert crash_counts.read_counts(names) == [1] + [0] * 99

    crash_counts.set_counts(names[:1], 0)
    assert list(tmp_path.iterdir()) == []
    file.write_text("no number")
    assert crash_counts.read_counts(names) == [0] * 100


def test_they_are_known_to_the_next_process_of_the_same_subscription_only(tmp_path: Path) -> None:
    CrashCountsOnDisk(tmp_path, "s").set_counts(["a"], 2)

    assert CrashCountsOnDisk(tmp_path, "s").read_counts(["a"]) == [2]
    assert CrashCountsOnDisk(tmp_path, "t").read_counts(["a"]) == [0]
    assert len(list(tmp_path.iterdir())) == 1


def test_where_there_is_no_directory_or_it_is_gone_that_is_unknown(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    counts = [CrashCountsOnDisk(directory, "s") for directory in (None, tmp_path / "not there", gone)]
    gone.rmdir()
    for crash_counts in counts:
        crash_counts.set_counts(["a"], 1)
        assert crash_counts.read_counts(["a"]) is None
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_beside_the_checkpoint_or_where_the_machine_keeps_what_is_passing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_state_directory(str(tmp_path / "checkpoint")) == tmp_path / "checkpoint" / "suspects"
    assert (tmp_path / "checkpoint" / "suspects").is_dir()

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = [choose_state_directory(None), choose_state_directory("gs://bucket/checkpoint")]
    assert elsewhere[0] == elsewhere[1] != tmp_path
    assert elsewhere[0] is not None
    assert elsewhere[0].parent == tmp_path

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere\0"))
    monkeypatch.setattr(Path, "mkdir", _refuse)
    assert choose_state_directory(None) is None


def _refuse_for_good(*_arguments: object) -> None:
    raise MisconfiguredError("made-up", "PERMISSION_DENIED")


def _refuse(*_arguments: object, **_named: object) -> None:
    raise PermissionError("read-only")


# Messages that need more memory than there is.


MOST = 8
"""So many messages fit into the memory at once."""


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some messages have no room in the memory, whatever else is there."""

    def decode(table: Any, now: Any, plan: Any, **how: Any) -> Any:
        if len(table) > MOST or any(b"huge" in data for data in table["data"].to_pylist()):
            raise pa.ArrowMemoryError("malloc of size 1000000000000 failed")
        return decode_messages(table, now, plan, **how)

    monkeypatch.setattr(micro_batch, "decode_messages", decode)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("places", [{0}, {57}, {99}, {3, 4, 80}])
def test_one_that_never_fits_ends_three_processes_the_rest_is_applied_in_the_first(
    world: World, places: set[int]
) -> None:
    messages = {f"m{n}": a_message(a_change(n)) for n in range(100)}
    huge = {f"m{n}": a_message(a_change(n, name="huge")) for n in places}
    deliveries = Deliveries(world, messages | huge)
    for _crash in range(3):
        with pytest.raises(MemoryError):
            deliveries.deliver(MINUTE)
        assert set(deliveries.pending) == set(huge)
        assert set(world.names()) == set(range(100)) - places
        assert world.dead_letters.kept == {}

    assert deliveries.deliver(MINUTE)
    assert world.reasons() == [Reason.RETRIES_EXHAUSTED] * len(places)
    assert {dead_letter.data for dead_letter in world.dead_letters.kept.values()} == {
        one["data"] for one in huge.values()
    }
    assert (deliveries.pending, world.crash_counts.over) == ({}, {})


@pytest.mark.usefixtures("little_memory")
def test_one_that_fits_once_more_memory_is_there_is_applied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries = Deliveries(world, {"m1": a_message(a_change(1, name="huge")), "m2": a_message(a_change(2))})
    for _crash in range(2):
        with pytest.raises(MemoryError):
            deliveries.deliver(MINUTE)
    monkeypatch.setattr(micro_batch, "decode_messages", decode_messages)

    assert deliveries.deliver(MINUTE)
    assert world.names() == {1: "huge", 2: "name 1"}
    assert world.dead_letters.kept == {}


def test_one_that_fits_once_the_others_are_done_is_applied_by_the_same_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_before: list[int] = []

    def with_little_room(table: Any, now: Any, plan: Any, **how: Any) -> Any:
        if any(b"large" in data for data in table["data"].to_pylist()):
            if len(world.names()) < 20:
                raise MemoryError
            applied_before.append(len(world.leases.acked))
        return decode_messages(table, now, plan, **how)

    monkeypatch.setattr(micro_batch, "decode_messages", with_little_room)
    counts = world.apply(a_message(a_change(99, name="large")), *[a_message(a_change(number)) for number in range(20)])

    assert (counts.acked, counts.dead_letters, applied_before) == (21, {}, [20])
    assert world.names()[99] == "large"
    assert world.crash_counts.over == {}
