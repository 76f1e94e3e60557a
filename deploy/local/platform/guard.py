"""A guard runs one command in a session of its own, and ends all of it as soon as its owner closes a pipe or dies.

The pipe is the whole protocol: the owner holds its writing end, and the kernel closes that however the owner ends, by
SIGKILL too (PR_SET_PDEATHSIG would not do: it is lost with the thread that forked, and reaches no grandchildren). So
stopping in good order and stopping after a crash are one path: the command is asked by SIGTERM, and what its session
still holds when it has ended, or when the grace is over, is killed.

Started by `processes.py` as ``guard.py <fd to read> <file for the command's pid> <grace seconds> command...``.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil


def main() -> int:
    """Run the command until it ends or the pipe is closed; return its exit code (128 + n where signal n ended it)."""
    pipe, pid_file, grace = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides when it is over
    try:
        command = subprocess.Popen(sys.argv[4:], preexec_fn=_default_signals)  # noqa: PLW1509 - no thread runs yet
    except OSError as error:
        print(error, file=sys.stderr)
        return 127
    pid_file.write_text(str(command.pid))
    threading.Thread(target=_end_when_closed, args=(pipe, command, grace), daemon=True).start()
    code = command.wait()
    kill_session(os.getpid(), but=os.getpid())
    return 128 - code if code < 0 else code


def kill_session(session: int, but: int = 0) -> None:
    """Kill every process of a session, whatever process group it moved to, until none is left."""
    while members := [process for process in session_members(session) if process.pid != but]:
        for process in members:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(members, timeout=1)


def session_members(session: int) -> list[psutil.Process]:
    """Return the processes of a session that still run; those that are dead and not yet waited for do not count.

    Each may have ended by the time the caller uses it: it raises psutil.NoSuchProcess then, and never touches
    another process that was given the same number since.
    """
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def _end_when_closed(pipe: int, command: "subprocess.Popen[bytes]", grace: float) -> None:
    while os.read(pipe, 1):
        pass
    command.terminate()
    try:
        command.wait(grace)
    except subprocess.TimeoutExpired:
        kill_session(os.getpid(), but=os.getpid())


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
