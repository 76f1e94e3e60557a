"""Commands run as a user runs them, and what is left running of them."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def run_variable() -> dict[str, str]:
    """Return a variable that every process of a run inherits, and no other."""
    return {"LC_MILLRACE_TEST": uuid.uuid4().hex}


def running(variable: Mapping[str, str]) -> list[str]:
    """Return the commands of the processes that bear the mark and still run."""
    words = [f"{name}={value}".encode() for name, value in variable.items()]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in environment for word in words):
            found.append(f"{entry.name} {command}")
    return found
