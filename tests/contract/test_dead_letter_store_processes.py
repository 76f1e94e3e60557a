"""Several processes on one file: one collector, one replay for each dead letter, and a death leaves all or nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.dead_letter.adapters.store.lock import collector_lock
from services.dead_letter.core.dead_letters import ReplayId
from services.dead_letter.core.selection import Selection
from shared.contracts.errors import MisconfiguredError
from tests.contract.dead_letter_stores import DEAD_LETTERS, LEASE, NOW, an_arrival, identity, later, sqlite_store

CLAIMING = """
    import sys
    from pathlib import Path
    from services.dead_letter.core.dead_letters import ReplayId
    from tests.contract.dead_letter_stores import LEASE, NOW, identity, sqlite_store
    from tests.contract.dead_letter_stores import DEAD_LETTERS

    path, name = sys.argv[1:]
    ids = [identity(one) for one in DEAD_LETTERS]
    with sqlite_store(Path(path)) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for start in range(0, len(ids), 10):
            for got in store.claim(ids[start : start + 10], ReplayId(name), NOW, LEASE):
                print(got, flush=True)
"""

KEEPING = """
    import sys
    from itertools import count
    from pathlib import Path
    from tests.contract.dead_letter_stores import NOW, a_dead_letter, an_arrival, sqlite_store

    with sqlite_store(Path(sys.argv[1])) as store:
        for turn in count():
            data = [bytes(50_000) + b"%d %d" % (row, turn) for row in range(10)]
            some = [an_arrival(a_dead_letter(row, turn, data=data[row])) for row in range(10)]
            print("keeping", turn, flush=True)
            store.keep(some, NOW)
            print("kept", turn, flush=True)
"""

HOLDING = """
    import sys
    from services.dead_letter.adapters.store.lock import collector_lock

    with collector_lock(sys.argv[1]):
        print("held", flush=True)
        sys.stdin.readline()
"""


REPLAYING = """
    import sys
    from pathlib import Path
    from services.dead_letter.core.dead_letters import ReplayId
    from tests.contract.dead_letter_stores import LEASE, NOW, sqlite_store, identity
    from tests.contract.dead_letter_stores import DEAD_LETTERS

    path, name = sys.argv[1:]
    with sqlite_store(Path(path)) as store, store.living(ReplayId(name)):
        store.claim([identity(DEAD_LETTERS[0])], ReplayId(name), NOW, LEASE)
        print("claimed", flush=True)
        sys.stdin.readline()
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program of Python in a process of its own."""
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"ended with {process.wait()}"
    return line


def resume(process: subprocess.Popen[str]) -> None:
    """Let a process go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End processes and close what leads to them."""
    for process in processes:
        process.kill()
        process.communicate()


def test_two_processes_that_claim_the_same_dead_letters_never_both_get_one(tmp_path: Path) -> None:
    path = tmp_path / "letters.sqlite3"
    with sqlite_store(path) as store:
        store.keep([an_arrival(one, one.key) for one in DEAD_LETTERS], NOW)
    processes = [start(CLAIMING, str(path), name) for name in ("one", "two", "three")]
    try:
        assert [line_of(process) for process in processes] == ["ready"] * 3
        for process in processes:
            resume(process)
        got = [process.communicate(timeout=120)[0].split() for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0]
    finally:
        end(processes)
    everything = [one for some in got for one in some]
    assert sorted(everything) == sorted(identity(one) for one in DEAD_LETTERS)  # each once
    with sqlite_store(path) as store:
        for name, some in zip(("one", "two", "three"), got, strict=True):
            assert store.claim([identity(one) for one in DEAD_LETTERS], ReplayId(name), later(1), LEASE) == [
                identity(one) for one in DEAD_LETTERS if identity(one) in set(some)
            ]


def test_what_a_killed_replay_held_is_released_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    path, dead_letter = tmp_path / "letters.sqlite3", identity(DEAD_LETTERS[0])
    with sqlite_store(path) as store:
        store.keep([an_arrival(DEAD_LETTERS[0])], NOW)
        process = start(REPLAYING, str(path), "first")
        try:
            assert line_of(process) == "claimed"
            assert store.release_dead() == []
            assert store.claim([dead_letter], ReplayId("second"), NOW, LEASE) == []
            process.send_signal(signal.SIGKILL)
            process.wait()
        finally:
            end([process])
        assert store.release_dead() == [ReplayId("first")]
        assert store.claim([dead_letter], ReplayId("second"), NOW, LEASE) == [dead_letter]
        assert store.release_dead() == []
    assert [one.name for one in tmp_path.iterdir() if "replay" in one.name] == []


def test_a_process_killed_as_it_keeps_leaves_all_or_nothing(tmp_path: Path) -> None:
    @settings(max_examples=6)
    @given(turns=st.integers(0, 8), moments=st.integers(0, 3000))
    def killed(turns: int, moments: int) -> None:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite3"
        process = start(KEEPING, str(path))
        try:
            while line_of(process) != f"keeping {turns}":
                pass
            for _ in range(moments):  # somewhere between the first statement and long after the last
                path.exists()
            process.send_signal(signal.SIGKILL)
            printed = process.communicate(timeout=60)[0].splitlines()
        finally:
            end([process])
        confirmed = max([turns, *(int(line.split()[1]) + 1 for line in printed if line.startswith("kept"))])
        with sqlite_store(path) as store:
            count = store.count(Selection())
            assert count % 10 == 0
            assert count // 10 in (confirmed, confirmed + 1)
            dead_letters = list(store.in_replay_order(Selection()))
            assert len(dead_letters) == count
            for stored in dead_letters:
                assert stored.dead_letter.data.startswith(bytes(50_000))
                assert (stored.attempts, len(store.trail(stored.id))) == (1, 1)
            again = [an_arrival(stored.dead_letter) for stored in dead_letters]
            assert store.keep(again, NOW).seen == count

    killed()


class TestOneCollector:
    def test_a_second_is_refused_while_the_first_lives(self, tmp_path: Path) -> None:
        address = f"sqlite:///{tmp_path}/letters.sqlite3"
        first = start(HOLDING, address)
        try:
            assert line_of(first) == "held"
            with pytest.raises(
                MisconfiguredError, match=rf"process {first.pid} on \S+\) .* one replica, or .* PostgreSQL"
            ):
                collector_lock(address).__enter__()
            first.kill()
            first.communicate()
            with collector_lock(address):
                pass
        finally:
            end([first])

    def test_it_is_released_when_the_block_ends(self, tmp_path: Path) -> None:
        address = f"sqlite:///{tmp_path}/letters.sqlite3"
        for _ in range(2):
            with collector_lock(address), pytest.raises(MisconfiguredError):
                collector_lock(address).__enter__()

    def test_a_command_is_no_collector(self, tmp_path: Path) -> None:
        path = tmp_path / "letters.sqlite3"
        with collector_lock(f"sqlite:///{path}"), sqlite_store(path) as store:
            assert store.keep([an_arrival()], NOW).new == 1

    def test_a_folder_that_is_missing_is_named_with_the_fix(self, tmp_path: Path) -> None:
        fix = "make its directory and let this user write there, or set DATABASE to another place"
        with pytest.raises(MisconfiguredError, match=f"letters.sqlite3.collector cannot be opened: .*; {fix}"):
            collector_lock(f"sqlite:///{tmp_path}/none/letters.sqlite3").__enter__()

    def test_postgresql_takes_any_number(self) -> None:
        address = "postgresql://host/letters"
        with collector_lock(address), collector_lock(address):
            pass
