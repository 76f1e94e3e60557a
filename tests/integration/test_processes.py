"""Nothing is left behind, however the owner ends; and a process that dies is noticed and named."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.local.platform import guard
from deploy.local.platform.processes import Process, ProcessDiedError, Processes, StopRequestedError, wait_until
from shared.runtime.stop import Stop

pytestmark = pytest.mark.integration

# A command with a child in the same process group, and one that left for a group of its own, as Spark's workers do.
PYTHON = shlex.quote(sys.executable)
FAMILY = f"sleep 300 & {PYTHON} -c 'import os, time; os.setpgid(0, 0); time.sleep(300)' & echo up; wait"
STUBBORN = f"trap '' TERM; {FAMILY}"

OWNER = """
import os, signal, sys
from pathlib import Path
from deploy.local.platform.processes import Processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
processes = Processes(Path(sys.argv[1]), os.environ)
process = processes.start("family", ["sh", "-c", sys.argv[2]])
process.pid
print(process.session, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_an_owner_ended_by(ending: signal.Signals, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        session = int(owner.stdout.readline())
        try:
            wait_until(lambda: len(guard.session_members(session)) >= 4, "guard, command and both children")

            owner.send_signal(ending)

            wait_until(lambda: not guard.session_members(session), "all to be gone", timeout=timedelta(minutes=1))
        finally:
            owner.kill()


def test_the_end_of_a_process_is_the_end_of_its_whole_session(new_processes: Processes) -> None:
    process = _family(new_processes, FAMILY)

    process.end()

    assert guard.session_members(process.session) == []
    assert process.exit_code == 128 + signal.SIGTERM
    new_processes.check()


def test_a_process_that_ignores_sigterm_is_killed(new_processes: Processes) -> None:
    process = _family(new_processes, STUBBORN)

    process.kill()

    assert guard.session_members(process.session) == []
    assert process.exit_code == 128 + signal.SIGKILL


def test_a_process_that_dies_is_reported_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    reported = threading.Event()
    dead: list[Process] = []

    def on_unexpected_end(process: Process) -> None:
        dead.append(process)
        reported.set()

    with Processes(tmp_path, os.environ, on_unexpected_end=on_unexpected_end) as processes:
        processes.start("short_lived", ["sh", "-c", "echo the last words; exit 3"])
        assert reported.wait(10)

        with pytest.raises(ProcessDiedError, match=r"(?s)short_lived ended with exit code 3.*the last words"):
            processes.check()
    assert [process.name for process in dead] == ["short_lived"]


def test_a_command_that_cannot_be_started_is_named(new_processes: Processes) -> None:
    process = new_processes.start("nowhere", ["/no/such/command"])

    with pytest.raises(ProcessDiedError, match=r"(?s)nowhere ended with exit code 127.*/no/such/command"):
        _ = process.pid


def test_a_wait_ends_when_what_it_waits_for_has_died(new_processes: Processes) -> None:
    new_processes.start("short_lived", ["sh", "-c", "exit 1"])

    with pytest.raises(ProcessDiedError, match="waited for rain, but short_lived ended with exit code 1"):
        new_processes.wait_until(lambda: None, "rain", timedelta(seconds=30))


def test_a_wait_ends_when_asked_to_stop(tmp_path: Path) -> None:
    stop = Stop()
    stop.request()
    with Processes(tmp_path, os.environ, stop) as processes, pytest.raises(StopRequestedError):
        processes.wait_until(lambda: None, "rain", timedelta(seconds=30))


def _family(processes: Processes, script: str) -> Process:
    process = processes.start("family", ["sh", "-c", script])
    wait_until(lambda: len(guard.session_members(process.session)) >= 4, "guard, command and both children")
    return process


def test_a_process_keeps_its_pid_while_another_of_its_name_runs(new_processes: Processes) -> None:
    first, second = (new_processes.start("reader", ["sleep", "300"]) for _ in range(2))

    assert second.pid != first.pid
    assert first.pid in guard_members(first)


def guard_members(process: Process) -> set[int]:
    return {member.pid for member in guard.session_members(process.session)}
