"""Each stand-in by its README: what its command prints, on which ports without options, and the example of a client."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Processes

pytestmark = pytest.mark.integration

TIMEOUT: Final = timedelta(seconds=60)
PORT: Final = re.compile(r"\b\d{4,5}\b")
FREE_PORTS: Final = {"bigquery": ("--rest-port=0", "--grpc-port=0"), "bigtable_streams": ("--port=0",)}


def blocks(name: str, language: str) -> Sequence[str]:
    """Return the blocks of code in a stand-in's README that are of a language."""
    readme = Path(ROOT / "emulators" / name / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)


def printed(processes: Processes, name: str, *options: str) -> str:
    """Run a stand-in on free ports; return what it prints when it listens."""
    command = [sys.executable, "-m", f"emulators.{name}", *FREE_PORTS[name], *options]
    process = processes.start(name, command, {"PYTHONPATH": str(ROOT)})
    return processes.wait_until(lambda: process.output() if "export" in process.output() else None, name, TIMEOUT)


def check_example(name: str, variables: str) -> None:
    """Run the program of a README with the variables that the stand-in printed: it prints what its comment promises."""
    exported: Mapping[str, str] = dict(re.findall(r"^export (\w+)=(\S+)$", variables, re.MULTILINE))
    program = blocks(name, "python")[0]
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **exported}, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE), ran.stderr


@pytest.mark.parametrize("name", FREE_PORTS)
def test_without_options_the_ports_are_those_of_the_readme(name: str) -> None:
    command = [sys.executable, "-m", f"emulators.{name}", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    (shown,) = blocks(name, "text")

    assert set(PORT.findall(shown)) == set(re.findall(r"(\d+); 0: a free one", text))


def test_bigquery_prints_what_its_readme_shows_and_serves_its_example(new_processes: Processes) -> None:
    text = printed(new_processes, "bigquery")

    assert PORT.sub("port", text) == PORT.sub("port", blocks("bigquery", "text")[0])
    check_example("bigquery", text)


def test_bigtable_streams_prints_what_its_readme_shows_and_serves_its_example(
    bigtable_emulator: str, new_processes: Processes
) -> None:
    text = printed(new_processes, "bigtable_streams", f"--emulator={bigtable_emulator}")

    assert PORT.sub("port", text) == PORT.sub("port", blocks("bigtable_streams", "text")[0])
    check_example("bigtable_streams", text)
