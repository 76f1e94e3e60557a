"""What the README tells a newcomer to type, in a fresh clone that shares nothing with this tree but pip's downloads."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT, run_variable, running

pytestmark = pytest.mark.timeout(900)  # everything is installed once more

# Where programs and packages come from: a newcomer's machine has its own answers to these.
_OF_THE_MACHINE = re.compile(r"PATH|LANG|JAVA_HOME|CLOUDSDK_ROOT.*|PIP_.*|SSL_CERT_.*|(?i:https?_proxy|no_proxy)")


@dataclass
class Clone:
    """A clone of what is committed here, and a shell in it."""

    directory: Path
    environment: Mapping[str, str]

    def type(self, command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """Type a command and wait until it ends."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    @property
    def running(self) -> list[str]:
        """Return what runs of all that was typed."""
        return running({name: value for name, value in self.environment.items() if name.startswith("LC_")})


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """Return a clone, with a home of its own; what it left running is ended."""
    directory, home = tmp_path_factory.mktemp("clone") / "mill race", tmp_path_factory.mktemp("home")
    subprocess.run(["git", "clone", "--quiet", ROOT, directory], check=True, timeout=60)
    asked = [sys.executable, "-m", "pip", "cache", "dir"]
    cache = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    kept = {name: value for name, value in os.environ.items() if _OF_THE_MACHINE.fullmatch(name)}
    clone = Clone(directory, {**kept, "PIP_CACHE_DIR": cache, "HOME": str(home), **run_variable()})
    yield clone
    clone.type("make down")


def test_make_run_needs_nothing_else_ends_with_equal_tables_and_leaves_nothing_running(clone: Clone) -> None:
    run = clone.type("make run", BEFORE="3000", ROWS="500", SECONDS="15", RATE="60")

    assert run.returncode == 0, run.stdout + run.stderr
    check_report(run.stdout)
    assert run.stdout.rstrip().endswith("BigQuery equals Spanner and Bigtable, every column of every row")
    assert clone.running == []
    assert clone.type("git status --porcelain").stdout == "", "it leaves nothing that git would ask about"


def check_report(output: str) -> None:
    """Check what a run says of tables, columns added in mid-stream, snapshots, history, change log and dead letters."""
    tables = re.findall(r"│ (GoogleSQL|PostgreSQL|Bigtable) +│ (\w+) +│ +[\d,]+ │ +none │", output)
    assert sorted(tables) == [
        *(("Bigtable", table) for table in ("airport_traffic", "hourly_weather")),
        *(("GoogleSQL", table) for table in ("airlines", "airports", "flights", "planes", "runways")),
        *(("PostgreSQL", table) for table in ("observations", "stations")),
    ]
    added = re.findall(
        r"column added in mid-stream: (\S+) \((\S+)\) after [\d.]+ s, in BigQuery [\d.]+ s later\n"
        r"  ([\d,]+) of ([\d,]+) rows hold it, changed since [\d:.]+; the first was ",
        output,
    )
    assert [one[:2] for one in added] == [
        ("flights.aircraft", "GoogleSQL"),
        ("observations.temperature_c", "PostgreSQL"),
    ]
    assert all(0 < int(filled.replace(",", "")) < int(total.replace(",", "")) for _, _, filled, total in added)
    ((changes, committed),) = re.findall(
        r"history of flights: ([\d,]+) of ([\d,]+) changes.*, [\d,]+ versions; each as it was written",
        output,
    )
    assert changes == committed
    ((source, completed),) = re.findall(r"^images completed of (\w+): ([\d,]+) updates", output, re.MULTILINE)
    assert (source, completed != "0") == ("flights", True)
    began = r"^  \w\w \d+ 2013-01-\d\d [A-Z]{3} +[\d:.]+ to [\d:.]+ +(inserted|there before)$"
    assert re.search(began, output, re.MULTILINE)
    snapshots = re.findall(
        r"^snapshot of (\w+): ([\d,]+) rows that were there before the change stream, "
        r"([\d,]+) published while ([\d,]+) changes were committed$",
        output,
        re.MULTILINE,
    )
    assert [source for source, *_ in snapshots] == ["flights", "weather", "airport_traffic"]
    taken = {source: [int(number.replace(",", "")) for number in numbers] for source, *numbers in snapshots}
    assert all(before == published for source, (before, published, _) in taken.items() if source != "airport_traffic")
    assert taken["airport_traffic"][1] >= taken["airport_traffic"][0] > 0  # with what came meanwhile
    assert taken["flights"][2] > 0  # the others have so few rows that all are there at once
    reconciled = re.findall(r"^reconcile, (\w+): (\d+) tables? equal, [\d,]+ rows$", output, re.MULTILINE)
    assert reconciled == [("flights", "5"), ("weather", "2"), ("hourly_weather", "1"), ("airport_traffic", "1")]
    assert re.search(
        r"^delete-missing-rows, flights: a row of airlines that Spanner never had is deleted, \d+ others stay$",
        output,
        re.MULTILINE,
    )
    ((entries, kinds),) = re.findall(
        r"change log of hourly_weather: ([\d,]+) entries.*: (.+); replayed, they are Bigtable's cells", output
    )
    counted = {kind: int(number.replace(",", "")) for number, kind in re.findall(r"([\d,]+) ([A-Z_]+)", kinds)}
    assert counted.keys() == {"SET_CELL", "DELETE_CELLS", "DELETE_FAMILY"}
    assert sum(counted.values()) == int(entries.replace(",", ""))
    ((split, merged),) = re.findall(r"hourly_weather (\d+) split, (\d+) merged", output)
    assert int(split) > 0
    assert int(split) >= int(merged)
    ((conflicts, replayed),) = re.findall(
        r"^dead letters: \d+ collected \((\d+) schema_conflict, 1 undecodable, 1 value_does_not_fit\)\n"
        r"  (\d+) replayed and applied once their table was fixed; "
        r"1 superseded, for their row was corrected at its source; 1 discarded; none is open$",
        output,
        re.MULTILINE,
    )
    assert int(replayed) >= int(conflicts) >= 9
    for source in ("Spanner", "Bigtable"):
        assert re.search(rf"^{source}, commit to queryable: p50 [\d.]+ s, p99 .* 0 unseen\)$", output, re.MULTILINE)


def test_the_commands_that_make_up_prints_work_and_make_down_stops_everything(clone: Clone) -> None:
    up = clone.type("make up", BEFORE="200", ROWS="100")
    assert up.returncode == 0, up.stdout + up.stderr
    typed = re.findall(r"^ +(\.venv/bin/python -m deploy\.local (sql|query|add) .+)$", up.stdout, re.MULTILINE)
    kinds = [kind for _, kind in typed]
    assert kinds == [*["sql", "query"] * 3, "add", "query"], "a database of each dialect, a history, and Bigtable"
    for (change, kind), (query, _) in zip(typed[::2], typed[1::2], strict=True):
        last = shlex.split(change)[-1]
        renamed = last.split("'")[1] if kind == "sql" else last[:-1]  # a few flights are counted already
        assert renamed not in clone.type(query).stdout

        changed = clone.type(change)
        assert changed.returncode == 0, changed.stdout + changed.stderr
        assert "1 row changed" in changed.stdout
        waited = clone.type(query)
        assert renamed in waited.stdout, "`query --wait` waits: " + waited.stdout + waited.stderr

    status = clone.type(".venv/bin/python -m deploy.local status")
    assert status.returncode == 0, status.stdout + status.stderr
    assert status.stdout.count(": reading at") == 4, status.stdout
    assert "cdc_consumer: running since" in status.stdout
    commands = re.findall(r"^ +(\(\. .+\))$", up.stdout, re.MULTILINE)
    assert [command.split()[-2:] for command in commands] == [
        ["spanner-reader", "doctor)"],
        ["reconcile", "--all)"],
    ]
    for command in commands:
        ran = clone.type(command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert clone.type("make up").stdout.startswith("already up\n")
    down = clone.type("make down")
    assert (down.returncode, down.stdout) == (0, "down\n"), down.stdout + down.stderr
    assert clone.running == []
    again = clone.type(query)
    assert again.returncode == 1
    assert "make up" in again.stdout
