"""`docs/reference/commands.md`: what each service's `--help` prints, and that of each of its commands."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from services.__main__ import usage

FILE: Final = "reference/commands.md"
SERVICES: Final = ("spanner_reader", "bigtable_reader", "cdc_consumer", "dead_letter")

_HEAD: Final = """# Commands

<!-- Made from `--help` by `make docs`; a test fails where they differ. Change the parsers, not this file. -->

`python -m services.NAME` starts a service; `python -m services.NAME COMMAND` runs a command beside it. A command
takes its settings from the same [environment variables](configuration.md) as its service. Each one prints its help
without them.

## millrace

From a checkout, `./millrace` starts all of them: `./millrace dead-letters replay` is
`python -m services.dead_letter replay`.

```text
{launcher}
```
"""

# A process for each service, because `main` sets up logs for the whole process.
_SCRIPT: Final = r"""
import contextlib, importlib, io, json, re, sys

main = importlib.import_module(f"services.{sys.argv[1]}.__main__").main

def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()

whole = printed()
commands = re.findall(r"^ {2,4}([a-z][a-z-]*) {2,}\S", whole, re.MULTILINE)
print(json.dumps({"": whole, **{command: printed(command) for command in commands}}))
"""


def text() -> str:
    """Return the whole document."""
    head = _HEAD.replace("{launcher}", usage().rstrip())
    return "\n".join([head, *(line for service in SERVICES for line in _section(service, helps(service)))])


def helps(service: str) -> Mapping[str, str]:
    """Return what `--help` prints: of the service by the empty name, of each command by its own."""
    answer = subprocess.run(
        [sys.executable, "-c", _SCRIPT, service],
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: Mapping[str, str] = json.loads(answer.stdout)
    return found


def _section(service: str, printed: Mapping[str, str]) -> Iterator[str]:
    for command, words in printed.items():
        yield f"### {service} {command}\n" if command else f"## {service}\n"
        yield "```text"
        yield "\n".join(line.rstrip() for line in words.strip().splitlines())
        yield "```\n"
