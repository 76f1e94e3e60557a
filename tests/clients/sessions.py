"""What Google's clients have to see in each session, and how their programs are run.

A program (tests/clients/go, java, node) takes addresses from its environment, performs every session, and prints a JSON
line for each: what it saw, or the error that ended it. It is the client as a user has it: without an interceptor, and
without headers of our own.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BUILT: Final = Path(__file__).resolve().parents[2] / "build" / "clients"
Seen = Mapping[str, Mapping[str, Any]]

DEFINITIONS_AND_QUERIES: Final[Mapping[str, Any]] = {
    "dataset_update": {"description": "as changed", "deleted": True},
    "definitions": {
        "before": ["defined", "passing"],
        "after": ["defined"],
        "columns": ["k", "v"],
        "primary_key": ["k"],
    },
    "missing_table": 404,
    "query": [[42, "it's", 6]],
    "pages": {"query": [2, 2, 1], "table": [2, 2, 1]},
    "job": {"done": True, "rows": [[1]], "listed": True},
}
APPENDS: Final[Mapping[str, Any]] = {
    "default_stream": [[1, "newest"], [3, "kept too"]],
    "row_errors": {"indexes": [0, 2], "rows": [[2, "b"]]},
    # gRPC's codes: accepted, ALREADY_EXISTS, accepted, OUT_OF_RANGE
    "committed_stream": {"codes": [0, 6, 0, 11], "count": 2, "rows": [[0, "row"], [1, "row"]]},
    "pending_stream": {"before": [[0]], "errors": 0, "after": [[2]]},
    "buffered_stream": {"flushed": 0, "rows": [[1]]},
    "schema_update": {"columns": ["k", "v", "added"], "rows": [[1, "a", "new"]]},
}
SHARED_CONNECTION: Final[Mapping[str, Any]] = {"shared_connection": [[0, "1"], [1, "2"], [10, "1"], [11, "2"]]}
CHANGE_STREAMS: Final[Mapping[str, Any]] = {
    "partitions": [["", "h"], ["h", "p"], ["p", ""]],
    "mutations": {
        "changes": [
            ["a", ["SetCell of 1", "SetCell of 1"]],
            ["a", ["DeleteCells"]],
            ["a", ["DeleteFamily"]],
            ["b", ["SetCell of 2000000"]],
            ["b", ["DeleteFamily"]],
        ],
        "end": "OK",
    },
    "resume": ["b", "c"],
    "refusals": {"without": "FAILED_PRECONDITION", "token": "INVALID_ARGUMENT", "start": "INVALID_ARGUMENT"},
}


def run_sessions(command: Sequence[str], **addresses: str) -> Seen:
    """Run a program and return its lines by session."""
    assert BUILT.is_dir(), "the programs of tests/clients are not built: make clients"
    # Without the second setting Google's Node clients look for a metadata server.
    environment = {**os.environ, **addresses, "METADATA_SERVER_DETECTION": "none"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=800)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    return {line["session"]: line for line in map(json.loads, ended.stdout.splitlines())}


def as_text(rows: Any) -> Any:
    """Return an expectation with the numbers in rows as text: as they come over the wire, and Java hands them out."""
    if isinstance(rows, Mapping):
        return {name: as_text(value) if name in {"rows", "before", "after"} else value for name, value in rows.items()}
    if isinstance(rows, list):
        return [[str(value) for value in row] if isinstance(row, list) else row for row in rows]
    return rows
