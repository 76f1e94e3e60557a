"""What a stand-in logs, in a process of its own: whoever configures logs configures them for the whole process."""

import json
import subprocess
import sys

from deploy.local.platform.emulators import ROOT

PROGRAM = """
import logging, sys
from emulators.bigquery import write_api
from emulators.running import configure_logs

configure_logs("stand_in", sys.argv[1])
said_there = "log.info('append_refused', rows=3)\\ntry: 1 / 0\\nexcept ZeroDivisionError: log.exception('failed')"
exec(said_there, vars(write_api))
logging.getLogger("library").warning("what %s", "a library says")
logging.getLogger("library").info("what nobody asked for")
"""


def logged(level: str) -> list[tuple[str, str]]:
    """Return severity and message of each line that is logged at a level."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, level], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert all(one["service"] == "stand_in" and one["time"].endswith("Z") for one in lines)
    assert ["ZeroDivisionError" in one.get("exception", "") for one in lines] == [
        one["message"] == "failed" for one in lines
    ]
    return [(one["severity"], one["message"]) for one in lines]


def test_events_from_the_level_on_and_warnings_of_libraries_are_lines_of_json() -> None:
    warnings = [("ERROR", "failed"), ("WARNING", "what a library says")]

    assert logged("WARNING") == warnings
    assert logged("INFO") == [("INFO", "append_refused"), *warnings]
