"""The page on dead letters says of each reason what it means and what to do, and of each state what it means.

The page on upgrades has the command that backs up a store, with the path that an image has.
"""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from services.dead_letter.core.dead_letters import State
from shared.contracts.reasons import Reason

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs" / "reference" / "dead-letters.md").read_text()


def test_every_reason_is_documented_in_the_order_of_the_list_and_no_other() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == [reason.value for reason in Reason]


def test_each_reports_what_it_means_and_what_to_do() -> None:
    sections = re.split(r"^### `\w+`$", PAGE, flags=re.MULTILINE)[1:]

    assert len(sections) == len(Reason)
    for section in sections:
        means, do = re.fullmatch(r"\s*\*Means:\* (.+?)\n\n\*Do:\* (.+?)\s*", section, re.DOTALL).groups()  # type: ignore[union-attr]
        assert min(len(means), len(do)) > 20


def test_every_state_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [state.value for state in State]


def test_the_readme_leads_there() -> None:
    assert "](docs/reference/dead-letters.md)" in (ROOT / "README.md").read_text()


def test_the_backup_of_a_store_is_whole_and_fails_where_there_is_none(tmp_path: Path) -> None:
    here, in_pod = re.findall(r'python -c "(.+)"', (ROOT / "docs/how-to/upgrade.md").read_text())
    (store,) = re.findall(r"^ENV DATABASE=sqlite:///(.+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert f"file:{store}?" in in_pod
    for command in (here, in_pod):
        (tmp_path / "pod").mkdir(exist_ok=True)
        program = command.replace(str(Path(store).parent), "pod")
        source = tmp_path / re.findall(r"file:(.+)[?]", program)[0]
        backup = source.with_name("dead_letters.before")
        backing_up = [sys.executable, "-c", program]
        assert subprocess.run(backing_up, cwd=tmp_path, capture_output=True, check=False).returncode == 1
        assert not source.exists()
        assert not backup.exists()
        with closing(sqlite3.connect(source)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE kept (id)")

            subprocess.run(backing_up, cwd=tmp_path, check=True)

        with closing(sqlite3.connect(backup)) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]
