"""A table of which no record tells that rows have changed: found, marked, and healed by a snapshot.

The reader as a process, before the emulator and its front.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.integration.bigtable_front import Front, set_cell
from tests.worlds.bigtable_snapshotting import TIMEOUT, Snapshotting

pytestmark = pytest.mark.integration

SOON = {"LEASE_DURATION": "2s", "CHECK_FAMILIES_EVERY": "1s"}


class Resyncing(Snapshotting):
    """A pipeline whose table has two families, one of which is dropped."""

    def fill(self) -> None:
        """Write rows, one of them to the family that is dropped alone, and wait until they are mirrored."""
        for number in range(30):
            self.table.write(b"%02d" % number, set_cell("f", b"q", b"v"), set_cell("g", b"q", b"v"))
        self.table.write(b"only g", set_cell("g", b"q", b"v"))
        self.wait_until_equal("f", "g")

    def drop_g(self) -> None:
        """Drop the family."""
        self.table.modify({"id": "g", "drop": True})

    def pending_resync(self) -> list[Mapping[str, Any]]:
        """Return what `status` says of it."""
        code, answer = self.status()
        found: list[Mapping[str, Any]] = answer["pending_resync"]
        assert code == 1 or not found
        return found


@pytest.fixture
def pipeline(front: Front, bigtable_pipeline: Callable[..., Resyncing]) -> Resyncing:
    """Return a pipeline whose table has two families."""
    return bigtable_pipeline(front.table("f", "g"), Resyncing)


def test_a_family_that_is_dropped_is_found_and_all_rows_come_again_without_being_asked_for(pipeline: Resyncing) -> None:
    readers = [pipeline.start(RESYNC="automatic", **SOON) for _reader in range(2)]
    pipeline.wait_until_complete(1)
    pipeline.fill()
    pipeline.drop_g()
    pipeline.wait_until_complete(2)
    pipeline.delete_missing_rows()

    assert pipeline.newest.keys() == {b"%02d" % number for number in range(30)}
    assert all(text is not None and json.loads(text)["g"] is None for _sequence, text in pipeline.newest.values())
    pipeline.processes.wait_until(lambda: not pipeline.pending_resync() or None, "the mark to go", TIMEOUT)
    outputs = [reader.output() for reader in readers]
    assert any('"resync_requested"' in output for output in outputs)
    assert sum(output.count("and RESYNC=automatic") for output in outputs) == 1, "two readers ask once"


def test_a_resync_request_outlives_readers_until_it_is_removed(pipeline: Resyncing) -> None:
    reader = pipeline.start(SNAPSHOT="never", **SOON)
    pipeline.fill()
    assert pipeline.pending_resync() == []
    pipeline.drop_g()
    pipeline.processes.wait_until(lambda: pipeline.pending_resync() or None, "the mark", TIMEOUT)
    reader.kill()

    (request,) = pipeline.pending_resync()
    assert [(why["kind"], why["families"]) for why in request["why"]] == [("families_dropped", ["g"])]
    assert "services.bigtable_reader snapshot`" in request["fix"]
    assert "pending resync since" in pipeline.run_command("doctor")[1]
    code, output = pipeline.run_command("synced")
    assert (code, "taken away: families dropped" in output) == (0, True), output
    assert pipeline.pending_resync() == []
    assert pipeline.run_command("synced")[0] == 2
    pipeline.start(SNAPSHOT="never", **SOON)
    assert pipeline.pending_resync() == [], "what was found before is not found again"
