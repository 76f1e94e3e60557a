"""The stream of a table paused and resumed, over a restart, a split and a merge, before the emulator and its front."""

from collections.abc import Callable

import pytest

from tests.integration.bigtable_front import Front, set_cell
from tests.worlds.bigtable_pipeline import BigtablePipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(front: Front, bigtable_pipeline: Callable[..., BigtablePipeline]) -> BigtablePipeline:
    """Return a pipeline on a table of its own, with the family f."""
    return bigtable_pipeline(front.table("f"))


def test_a_paused_stream_stays_so_over_a_restart_and_goes_on_where_it_was(pipeline: BigtablePipeline) -> None:
    front, table = pipeline.table.front, pipeline.table
    code, output = pipeline.run_command("pause")
    assert (code, "start the reader first" in output) == (2, True)
    reader = pipeline.start(SNAPSHOT="never")  # one under way could still publish rows once the stream is let go
    table.write(b"a", set_cell("f", b"q", b"before"))
    pipeline.wait_until_equal("f")
    for what in ("pause", "resume", "snapshot"):
        code, output = pipeline.run_command(what, CHANGE_STREAM_NAME="nothere")
        assert (code, "BIGTABLE_TABLE" in output, "row was deleted" in output) == (2, True, False)
    unasked = f"{table.name.rpartition('/')[2]}: no snapshot was asked for\n"  # so nothing was written
    assert pipeline.run_command("snapshot", "--status", CHANGE_STREAM_NAME="nothere") == (0, unasked)
    assert pipeline.run_command("pause")[0] == 0
    assert "was paused already" in pipeline.run_command("pause")[1]
    pipeline.wait(lambda: not any(one["partitions"] for one in pipeline.status()[1]["readers"]), "it to let go")
    assert '"stream_paused"' in reader.output()
    for key in (b"b", b"m", b"z"):
        table.write(key, set_cell("f", b"q", b"meanwhile"))
    front.control.split(table.name, b"m")
    table.write(b"n", set_cell("f", b"q", b"behind the split"))
    reader.kill()
    again = pipeline.start(SNAPSHOT="never")
    assert '"partition_claimed"' not in again.output()
    code, shown = pipeline.status()
    assert (code, shown["state"], shown["paused_since"] is not None) == (0, "paused", True)
    assert "it is paused since" in pipeline.run_command("doctor")[1]
    front.control.merge(table.name, b"m")
    pipeline.pull()
    assert pipeline.newest.keys() == {b"a"}

    assert pipeline.run_command("resume")[0] == 0
    pipeline.wait_until_equal("f")
    assert pipeline.run_command("resume")[0] == 1
    assert pipeline.status()[1]["state"] == "reading"
