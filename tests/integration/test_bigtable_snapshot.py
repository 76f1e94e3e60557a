"""Rows that were there before the change stream: read beside it, killed in between, and again on demand.

The reader as a process, before the emulator and its front.
"""

import json
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.local.platform.processes import Process
from services.bigtable_reader.core.snapshot.snapshot import PartState, SnapshotPart
from tests.integration.bigtable_front import Front, delete_row, set_cell
from tests.integration.log_lines import events
from tests.integration.readers import stop
from tests.worlds.bigtable_snapshotting import TIMEOUT, Snapshotting

pytestmark = pytest.mark.integration

ROWS = 2_000


@pytest.fixture
def pipeline(front: Front, bigtable_pipeline: Callable[..., Snapshotting]) -> Snapshotting:
    """Return a pipeline on a table of three partitions."""
    return bigtable_pipeline(front.table("f", "g", splits=[b"0600", b"1200"]), Snapshotting)


def fill(pipeline: Snapshotting) -> None:
    """Write rows, and disable and enable the stream: no record tells of them any more."""
    for number in range(ROWS):
        pipeline.table.write(b"%04d" % number, set_cell("f", b"q", b"before %d" % number))
    pipeline.table.retain(None)
    pipeline.table.retain(timedelta(days=1))


def test_a_snapshot_killed_repeatedly_publishes_all_rows_and_restarts_no_finished_range(pipeline: Snapshotting) -> None:
    fill(pipeline)
    chance = random.Random(7)
    wanted = {"SNAPSHOT_ROWS_PER_SECOND": "150", "LEASE_DURATION": "2s"}
    readers: list[tuple[Process, Mapping[int, SnapshotPart]]] = []
    saved: Mapping[int, SnapshotPart] = {}
    for round_ in range(4):
        reader = pipeline.start(**wanted)
        readers.append((reader, saved))
        before = len(pipeline.arrived)

        def more(before: int = before) -> bool | None:
            pipeline.pull()
            return len(pipeline.arrived) > before or None

        pipeline.processes.wait_until(more, "rows of the snapshot", TIMEOUT)
        for _write in range(20):
            key = b"%04d" % chance.randrange(ROWS)
            if chance.random() < 0.3:
                pipeline.table.write(key, delete_row())
            else:
                pipeline.table.write(key, set_cell("g", b"q", b"in round %d" % round_))
        pipeline.table.front.control.split(pipeline.table.name, b"%04d" % (300 + 100 * round_))
        if round_ == 1:
            pipeline.processes.wait_until(lambda: done(pipeline.saved()) or None, "a part that is saved", TIMEOUT)
        reader.kill()
        saved = pipeline.saved()
    readers += [(pipeline.start(LEASE_DURATION="2s"), saved) for _reader in range(2)]
    pipeline.wait_until_complete(1)
    pipeline.wait_until_equal("f", "g")

    assert '"snapshot_requested"' in readers[0][0].output()
    assert not any('"snapshot_requested"' in reader.output() for reader, _known in readers[1:])
    assert done(saved)
    for reader, known in readers:
        check_goes_on(reader, known)
    code, output = pipeline.command("--status", "--json")
    (shown,) = json.loads(output)["snapshots"]
    assert (code, shown["state"], shown["ranges_left"]) == (0, "DONE", 0)
    assert shown["rows"] <= ROWS


def done(parts: Mapping[int, SnapshotPart]) -> bool:
    """Return whether some of them are read."""
    return any(part.state is PartState.DONE for part in parts.values())


def check_goes_on(reader: Process, before: Mapping[int, SnapshotPart]) -> None:
    """Check that a reader took no part that was read before it started, and began none before what was saved of it."""
    for one in events(reader, "snapshot_range_claimed"):
        part = before.get(one["range"])
        assert part is None or (part.state is not PartState.DONE and one["rows"] >= part.rows), one


def test_a_key_range_is_read_alone_and_a_cancelled_snapshot_is_never_complete(
    pipeline: Snapshotting, tmp_path: Path
) -> None:
    reader = pipeline.start(LEASE_DURATION="2s", SNAPSHOT="never")
    for number in range(30):
        pipeline.table.write(b"%02d" % number, set_cell("f", b"q", b"v"))
    pipeline.wait_until_equal("f", "g")
    assert "SNAPSHOT=never" in reader.output()
    name = pipeline.table.name.rpartition("/")[2]
    assert pipeline.command("--status") == (0, f"{name}: no snapshot was asked for\n")
    assert "all rows would be read" in pipeline.command("--dry-run")[1]
    code, output = pipeline.command("--after", "04", "--until", "09", "--watch", "--json")
    (shown,) = json.loads(output)["snapshots"]
    assert (code, shown["state"], shown["rows"], shown["keys"]) == (0, "DONE", 5, ["[04\\x00, 09\\x00)"])
    pipeline.pull()
    assert sorted(key for key, _sequence, _row in pipeline.arrived) == [b"%02d" % number for number in range(5, 10)]
    reader.kill()
    assert pipeline.command()[0] == 0
    older = tmp_path / "tables.toml"
    older.write_text('[tables."*"]\nvalues = "text"\n')
    assert "watches something else" in pipeline.command(TABLES_FILE=str(older))[1]
    assert "given up" in pipeline.command("--cancel", TABLES_FILE=str(older))[1]
    assert "nothing was left" in pipeline.command("--cancel")[1]
    _code, output = pipeline.command("--status", "--json")
    (shown,) = json.loads(output)["snapshots"]
    assert (shown["state"], shown["complete_since"]) == ("CANCELLED", None)
    assert pipeline.lines == set()


@pytest.mark.timeout(400)
def test_a_snapshot_that_waits_for_a_reader_reports_the_fix_and_continues_after_it(pipeline: Snapshotting) -> None:
    assert "start the reader first" in pipeline.command()[1]
    name = pipeline.table.name.rpartition("/")[2]
    assert pipeline.command("--status") == (0, f"{name}: no snapshot was asked for\n")
    over = {"END_TIMESTAMP": "2020-01-01T00:00:00Z", "LEASE_DURATION": "2s"}
    first = pipeline.start(LEASE_DURATION="2s", SNAPSHOT="never")
    for number in range(30):
        pipeline.table.write(b"%02d" % number, set_cell("f", b"q", b"v"))
    pipeline.wait_until_equal("f", "g")
    first.kill()  # so what it had reserved for its versions is above every version that is still made
    assert pipeline.command()[0] == 0
    reads_no_further = pipeline.start(**over)
    reads_no_further.expected_to_end = True

    def shows(reason: str, **variables: str) -> bool | None:
        return reason in pipeline.command("--status", **variables)[1] or None

    pipeline.processes.wait_until(lambda: shows("over at END_TIMESTAMP", **over), "the snapshot to wait", TIMEOUT)
    fix = "again where their END_TIMESTAMP is reached"
    pipeline.processes.wait_until(lambda: shows(fix), "the status to show the fix", TIMEOUT)
    stop(reads_no_further)
    pipeline.start(LEASE_DURATION="2s")
    code, output = pipeline.command("--status", "--watch")
    assert (code, "30 rows, complete since" in output) == (0, True), output
    pipeline.wait_until_complete(1)


def test_a_change_log_alone_takes_none(pipeline: Snapshotting, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("tables") / "tables.toml"
    name = pipeline.table.name.rpartition("/")[2]
    file.write_text(f'[tables."{name}"]\nmode = "history"\n')
    reader = pipeline.start(TABLES_FILE=str(file))
    assert "a change log has changes only" in reader.output()
    refused = pipeline.launch("snapshot", TABLES_FILE=str(file))
    assert refused.wait(timedelta(seconds=30)) == 2
    assert "mode both" in refused.output()
