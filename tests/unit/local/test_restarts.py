"""A service that has died is restarted, with a pause that grows and the settings of by then."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.local.platform.processes import ProcessDiedError, Processes, wait_until
from deploy.local.platform.restarts import LONGEST, Restarts
from deploy.local.platform.services import Service
from shared.contracts.timestamps import Nanoseconds


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.seconds = 0

    def now(self) -> Nanoseconds:
        return Nanoseconds(self.seconds * 1_000_000_000)


class World:
    """A service of a shell's, and an emulator that lives."""

    def __init__(self, processes: Processes, script: str) -> None:
        self.processes, self.clock, self.lines = processes, Clock(), list[str]()
        self.service = Service(processes.start("reader", ["sh", "-c", script]), 0)
        self.restarts = Restarts(processes, [self.service], self.clock, self.lines.append)

    def dies(self) -> None:
        wait_until(lambda: bool(self.processes.dead), "the service to die", timeout=timedelta(seconds=20))

    def restarted_after(self, seconds: int) -> None:
        self.dies()
        assert not self.restarts.restart_ended()
        self.clock.seconds += seconds - 1
        assert not self.restarts.restart_ended()
        self.clock.seconds += 1
        assert self.restarts.restart_ended()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path, os.environ) as processes:
        yield processes


def test_a_killed_service_is_restarted_in_its_place_with_a_line_about_it(processes: Processes) -> None:
    world = World(processes, "sleep 60")
    last = processes.start("last", ["sleep", "60"])
    before = world.service.process
    os.kill(before.pid, 9)
    world.restarted_after(1)

    assert world.service.process is not before
    assert processes.running == [world.service.process, last]
    assert world.service.process.exit_code is None
    assert world.lines == ["reader ended with exit code 137; it is restarted in 1 s", "reader is restarted"]
    processes.check()


def test_pauses_grow_up_to_a_minute_and_are_short_again_after_a_while(processes: Processes) -> None:
    world = World(processes, "exit 1")
    for seconds in (1, 2, 4, 8, 16, 32, LONGEST, LONGEST):
        world.restarted_after(seconds)
    world.dies()
    world.clock.seconds += 600
    world.restarted_after(1)


def test_a_service_that_needs_a_person_is_restarted_with_the_setting_that_was_corrected(processes: Processes) -> None:
    world = World(processes, 'test "$TOPIC" = "a topic" && sleep 60; echo TOPIC is not set; exit 2')
    world.restarted_after(1)
    log, settings = processes.directory / "reader.log", processes.directory / "reader.env"
    assert world.lines[1] == f"it needs you: the end of {log} says what; settings: {settings}"

    settings.write_text("# corrected\nexport TOPIC='a topic'\n")
    world.restarted_after(2)
    assert world.service.process.wait(timedelta(seconds=1)) is None


def test_the_end_of_an_emulator_is_the_end_of_the_platform(processes: Processes) -> None:
    world = World(processes, "sleep 60")
    processes.start("emulator", ["false"])
    world.dies()
    with pytest.raises(ProcessDiedError, match="emulator ended with exit code 1"):
        world.restarts.restart_ended()
