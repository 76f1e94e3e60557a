"""The stream of a table paused and resumed, over a restart, a split and a merge, before the emulator and its front."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from deploy.local.processes import Processes
from shared.pubsub.channels import open_channel
from tests.integration.bigtable_front import Front, set_cell
from tests.integration.pubsub_topics import a_topology
from tests.integration.test_bigtable_reader_process import PATIENCE, STARTS, Pipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(bigtable_front: str, pubsub_emulator: str, new_processes: Processes) -> Iterator[Pipeline]:
    """Return a pipeline on a table of its own, with the family f."""
    with Front(bigtable_front) as front, open_channel(pubsub_emulator) as channel:
        yield Pipeline(front.table("f"), pubsub_emulator, channel, a_topology(channel), new_processes)


def command(pipeline: Pipeline, *arguments: str) -> tuple[int | None, str]:
    """Run a command beside the readers; return its exit code and what it said."""
    started = pipeline.launch(*arguments)
    started.expected_to_end = True
    code = started.wait(STARTS)
    said = started.output()
    started.end()
    return code, said


def status(pipeline: Pipeline) -> tuple[int | None, Mapping[str, Any]]:
    """Return what `status` says, and its exit code."""
    code, said = command(pipeline, "status", "--json")
    return code, json.loads(said)


def test_a_paused_stream_stays_so_over_a_restart_and_goes_on_where_it_was(pipeline: Pipeline) -> None:
    front, table = pipeline.table.front, pipeline.table
    code, said = command(pipeline, "pause")
    assert (code, "start the reader first" in said) == (2, True)
    reader = pipeline.start()
    table.write(b"a", set_cell("f", b"q", b"before"))
    pipeline.wait_until_equal("f")
    assert command(pipeline, "pause")[0] == 0
    assert "was paused already" in command(pipeline, "pause")[1]

    def given_back() -> bool | None:
        return not any(one["partitions"] for one in status(pipeline)[1]["readers"]) or None

    pipeline.processes.wait_until(given_back, "the reader to let go", PATIENCE)
    assert '"stream_paused"' in reader.output()
    for key in (b"b", b"m", b"z"):
        table.write(key, set_cell("f", b"q", b"meanwhile"))
    front.control.split(table.name, b"m")
    table.write(b"n", set_cell("f", b"q", b"behind the split"))
    reader.kill()
    again = pipeline.start()
    assert '"partition_claimed"' not in again.output()
    code, shown = status(pipeline)
    assert (code, shown["state"], shown["paused_since"] is not None) == (0, "paused", True)
    assert "it is paused since" in command(pipeline, "doctor")[1]
    front.control.merge(table.name, b"m")
    pipeline.pull()
    assert pipeline.newest.keys() == {b"a"}

    assert command(pipeline, "resume")[0] == 0
    pipeline.wait_until_equal("f")
    assert command(pipeline, "resume")[0] == 1
    assert status(pipeline)[1]["state"] == "reading"
