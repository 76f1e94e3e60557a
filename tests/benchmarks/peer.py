"""A peer of the consumer: Google's StreamWriter for Java, of the same rows and to the same write server."""

import json
from typing import Final

from deploy.local.platform.emulators import ROOT
from tests.benchmarks.backlog import one_change_a_message
from tests.benchmarks.drain import run_command
from tests.benchmarks.pipelines import PROJECT, Platform
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import COLUMNS, Workload

BUILT: Final = ROOT / "build" / "clients" / "java"
_OWN: Final = {
    "_millrace_sequence": "STRING",
    "_millrace_commit_timestamp": "TIMESTAMP",
    "_CHANGE_TYPE": "STRING",
    "_CHANGE_SEQUENCE_NUMBER": "STRING",
}
_TIMES: Final = 4
"""The file is written so often; the last time counts."""


def measure_java(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure it if `make clients` has built it; say so where it has not."""
    if not (BUILT / "classes" / "clients" / "StreamWriterPeer.class").exists():
        platform.print_line("  java: not measured, since it is not built: `make clients` builds it")
        return []
    file = platform.processes.directory / "peer-changes"
    messages = one_change_a_message(Workload(sizes.keys, seed=98).records(sizes.changes)).messages
    file.write_bytes(b"".join(bytes(one.data) + b"\n" for one in messages))
    tables = f"projects/{PROJECT}/datasets/peer/tables"
    columns = json.dumps({**COLUMNS, **_OWN})
    command = ["java", "-cp", f"{BUILT / 'classes'}:{BUILT / 'libraries'}/*", "clients.StreamWriterPeer"]
    rates, costs = [], []
    for _run in range(sizes.runs):
        answer = run_command(
            platform, "java_peer", [*command, platform.null.address, tables, str(file), columns, str(_TIMES)]
        )
        rates.append(len(messages) / answer["seconds"])
        costs.append(answer["cpu_seconds"] * 1e6 / len(messages))
        platform.print_line(f"  StreamWriter for Java: {rates[-1]:,.0f} changes/s, {costs[-1]:.1f} us of CPU each")
    note = "not Millrace: from a file, parsed, encoded and sent, 1,000 rows in a request; nothing else"
    return [
        Measured(name="peer.java_stream_writer", unit="changes/s", runs=rates, note=note),
        Measured(name="peer.java_stream_writer.cpu", unit="us/change", runs=costs),
    ]
