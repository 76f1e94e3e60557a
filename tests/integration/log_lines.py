"""What the log of a service's process says, line by line."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.local.platform.processes import Process


def events(process: Process, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the log lines of an event, but for one that is being written; every line has to be JSON."""
    whole, _newline, _part = process.output().rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == name]
