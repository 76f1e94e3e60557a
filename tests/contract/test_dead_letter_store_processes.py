"""Several processes on one file: one collector, one replay for each letter, and a death leaves all or nothing."""

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
from tests.contract.dead_letter_stores import LEASE, LETTERS, NOW, an_arrival, identity, later, sqlite_store

CLAIMING = """
    import sys
    from pathlib import Path
    from services.dead_letter.core.dead_letters import ReplayId
    from tests.contract.dead_letter_stores import LEASE, NOW, identity, sqlite_store
    from tests.contract.dead_letter_stores import LETTERS

    path, name = sys.argv[1:]
    ids = [identity(letter) for letter in LETTERS]
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
    from tests.contract.dead_letter_stores import NOW, a_letter, an_arrival, sqlite_store

    with sqlite_store(Path(sys.argv[1])) as store:
        for turn in count():
            some = [an_arrival(a_letter(row, turn, data=bytes(50_000) + b"%d %d" % (row, turn))) for row in range(10)]
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
    from tests.contract.dead_letter_stores import LETTERS

    path, name = sys.argv[1:]
    with sqlite_store(Path(path)) as store, store.living(ReplayId(name)):
        store.claim([identity(LETTERS[0])], ReplayId(name), NOW, LEASE)
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
        store.keep([an_arrival(letter, letter.key) for letter in LETTERS], NOW)
    processes = [start(CLAIMING, str(path), name) for name in ("one", "two", "three")]
    try:
        assert [line_of(process) for process in processes] == ["ready"] * 3
        for process in processes:
            resume(process)
        got = [process.communicate(timeout=120)[0].split() for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0]
    finally:
        end(processes)
    everything = [letter for some in got for letter in some]
    assert sorted(everything) == sorted(identity(letter) for letter in LETTERS)  # each once
    with sqlite_store(path) as store:
        for name, some in zip(("one", "two", "three"), got, strict=True):
            assert store.claim([identity(letter) for letter in LETTERS], ReplayId(name), later(1), LEASE) == [
                identity(letter) for letter in LETTERS if identity(letter) in set(some)
            ]


def test_what_a_killed_replay_held_is_released_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    path, letter = tmp_path / "letters.sqlite3", identity(LETTERS[0])
    with sqlite_store(path) as store:
        store.keep([an_arrival(LETTERS[0])], NOW)
        process = start(REPLAYING, str(path), "first")
        try:
            assert line_of(process) == "claimed"
            assert store.release_dead() == []
            assert store.claim([letter], ReplayId("second"), NOW, LEASE) == []
            process.send_signal(signal.SIGKILL)
            process.wait()
        finally:
            end([process])
        assert store.release_dead() == [ReplayId("first")]
        assert store.claim([letter], ReplayId("second"), NOW, LEASE) == [letter]
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
            letters = list(store.in_replay_order(Selection()))
            assert len(letters) == count
            for letter in letters:
                assert letter.letter.data.startswith(bytes(50_000))
                assert (letter.attempts, len(store.trail(letter.id))) == (1, 1)
            again = [an_arrival(letter.letter) for letter in letters]
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

    def test_a_folder_that_cannot_be_written_to_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MisconfiguredError, match="cannot be opened"):
            collector_lock(f"sqlite:///{tmp_path}/none/letters.sqlite3").__enter__()

    def test_postgresql_takes_any_number(self) -> None:
        address = "postgresql://host/letters"
        with collector_lock(address), collector_lock(address):
            pass
