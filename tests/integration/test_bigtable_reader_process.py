"""The reader as a process, before the emulator and its front: kills, splits, merges, a pause, refusals to start."""

import asyncio
import base64
import random
import signal
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.integration.bigtable_front import CLUSTER, INSTANCE, Front, delete_row, set_cell
from tests.integration.bigtable_workload import FAMILIES, SUMS, Writer
from tests.integration.log_lines import events
from tests.integration.readers import STARTS, TIMEOUT, refusal, stop
from tests.integration.wire import wire
from tests.worlds.bigtable_pipeline import BigtablePipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(front: Front, bigtable_pipeline: Callable[..., BigtablePipeline]) -> BigtablePipeline:
    """Return a pipeline on a table of its own, with the families f and g."""
    return bigtable_pipeline(front.table("f", "g"))


def test_what_is_written_arrives_a_stop_is_quick_and_the_next_start_goes_on_where_it_was(
    pipeline: BigtablePipeline,
) -> None:
    reader = pipeline.start()
    for number in range(50):
        pipeline.table.write(b"row %02d" % number, set_cell("f", b"q", b"%d" % number))
    pipeline.table.write(b"row 00", delete_row())
    pipeline.table.write(b"row 01", set_cell("g", b"q", b"more"))
    pipeline.wait_until_equal("f", "g")
    assert pipeline.run_command("doctor")[0] == 0
    assert "1 RUNNING" in pipeline.run_command("status")[1]
    stop(reader)
    pipeline.pull()  # the rows of the first snapshot may have come after the changes
    published = pipeline.changes

    pipeline.table.write(b"row 02", set_cell("f", b"q", b"while nobody reads"))
    again = pipeline.start()
    pipeline.wait_until_equal("f", "g")
    assert pipeline.changes == published + 1  # it went on behind what was confirmed
    assert '"resumed"' in again.output()
    assert len(events(reader, "service_started")) == 1
    assert '"change_stream_costs_listed"' in reader.output()


def test_killed_at_random_under_splits_and_merges_the_mirror_ends_equal(
    front: Front, bigtable_pipeline: Callable[..., BigtablePipeline]
) -> None:
    table = front.table(*FAMILIES, aggregates=[SUMS])
    pipeline = bigtable_pipeline(table)
    chance = random.Random(4)
    keys = [b"r%02d" % number for number in range(1, 40)]

    async def write(seed: int) -> None:
        async with grpc.aio.insecure_channel(front.address) as channel:
            await asyncio.gather(*(Writer(channel, table.name, seed + one).run(25) for one in range(4)))

    running = [pipeline.start(), pipeline.start()]
    for round_ in range(5):
        asyncio.run(write(100 * round_))
        for _change in range(3):
            if chance.random() < 0.6:
                front.control.split(table.name, chance.choice(keys))
            else:
                front.control.merge(table.name, chance.choice(keys))
        victim = running.pop(0)
        victim.kill()
        pipeline.pull()
        running.append(pipeline.start())
    asyncio.run(write(1_000))
    pipeline.wait_until_equal(*FAMILIES, SUMS)
    assert '"key_ranges_reshaped"' in "".join(process.output() for process in pipeline.processes.running)


def test_what_a_paused_owner_publishes_when_another_has_taken_over_loses(pipeline: BigtablePipeline) -> None:
    late = base64.b64encode(b"late").decode()
    with wire(pipeline.pubsub) as wired:
        first = pipeline.start(PUBSUB_EMULATOR_HOST=wired.address)
        pipeline.table.write(b"row", set_cell("f", b"q", b"early"))
        pipeline.wait_until_equal("f", "g")
        wired.buffer()
        pipeline.table.write(b"row", set_cell("f", b"q", b"late"))
        pipeline.wait(lambda: wired.has_buffered(late.encode()), "an image on its way")
        first.signal(signal.SIGSTOP)
        second = pipeline.start()
        pipeline.wait_until_equal("f", "g")  # by the second, when the lease has ended
        assert '"partition_claimed"' in second.output()
        pipeline.table.write(b"row", set_cell("f", b"q", b"last"))
        pipeline.wait_until_equal("f", "g")
        newest, arrived = pipeline.newest[b"row"], len(pipeline.arrived)
        wired.let_go()
        pipeline.wait(lambda: len(pipeline.arrived) > arrived, "the image that was on its way", pipeline.pull)
        first.signal(signal.SIGCONT)
        pipeline.wait(lambda: bool(events(first, "lease_lost")), "the first to notice")
        first.ask_to_end()  # which publishes what it has
        first.wait(STARTS)
        pipeline.pull()

    assert pipeline.newest[b"row"] == newest
    for row_key, sequence, row in pipeline.arrived[arrived:]:
        assert (row_key, late in row) == (b"row", True)
        assert sequence < newest[0]


def test_a_shorter_retention_is_reported_and_a_profile_that_routes_elsewhere_stops_the_reader(
    pipeline: BigtablePipeline,
) -> None:
    front = pipeline.table.front
    profile = front.app_profile()
    front.control.add_cluster(INSTANCE, "front-c2")

    def route_to(cluster: str) -> None:
        front.route(profile, single_cluster_routing={"cluster_id": cluster, "allow_transactional_writes": True})

    pipeline.table.retain(timedelta(days=7))
    read = {"APP_PROFILE": profile, "CHECK_FAMILIES_EVERY": "1s"}
    reader = pipeline.start(**read)
    pipeline.table.write(b"row", set_cell("f", b"q", b"v"))
    pipeline.wait_until_equal("f", "g")
    pipeline.table.retain(timedelta(days=2))
    pipeline.wait(lambda: bool(events(reader, "retention_shortened")), "the warning")

    route_to("front-c2")
    assert f"--route-to={CLUSTER}" in refusal(reader, TIMEOUT)
    again = pipeline.refused(**read)
    assert f"--route-to={CLUSTER}" in again
    assert '"partition_claimed"' not in again
    route_to(CLUSTER)
    pipeline.table.write(b"row", set_cell("f", b"q", b"w"))
    pipeline.start(**read)
    pipeline.wait_until_equal("f", "g")


def test_images_and_a_change_log_at_once_and_an_end_that_ends_the_process(
    pipeline: BigtablePipeline, tmp_path: Path
) -> None:
    tables = tmp_path / "tables.toml"
    tables.write_text('[defaults]\nmode = "both"\n', encoding="utf-8")
    since = pipeline.table.since
    for number in range(10):
        pipeline.table.write(b"row %d" % number, set_cell("f", b"q", b"v"), set_cell("g", b"q", b"w"))
    end = pipeline.table.front.control.describe(pipeline.table.name).now
    reader = pipeline.launch(
        TABLES_FILE=str(tables),
        START_TIMESTAMP=format_timestamp(Nanoseconds(since * 1_000)),
        END_TIMESTAMP=format_timestamp(Nanoseconds(end * 1_000)),
    )
    assert reader.wait(STARTS) == 0, reader.obituary()
    reader.end()
    pipeline.pull()
    assert pipeline.mirror() == pipeline.source("f", "g")
    assert len(pipeline.lines) == 20


def test_what_cannot_work_is_refused_with_exit_code_two_and_what_fixes_it(pipeline: BigtablePipeline) -> None:
    plain = pipeline.table.front.table("f", retention=None)
    early = format_timestamp(Nanoseconds((pipeline.table.since - 3_600_000_000) * 1_000))
    cases = {
        "does not exist: correct TOPIC": {"TOPIC": f"unheard-{uuid.uuid4().hex}"},
        "--change-stream-retention-period": {"BIGTABLE_TABLE": plain.name.rpartition("/")[2]},
        "RESUME=resume-or-new": {"RESUME": "resume-or-fail"},
        "is in the future": {"START_TIMESTAMP": "2999-01-01T00:00:00Z"},
        "name a START_TIMESTAMP": {"START_TIMESTAMP": early},
        "app profile": {"APP_PROFILE": "nobody"},
    }
    refused = {wanted: pipeline.launch(**variables) for wanted, variables in cases.items()}
    for wanted, reader in refused.items():
        assert wanted in refusal(reader)
    reader = pipeline.start()  # nothing of a refused start was remembered
    assert '"first_start"' in reader.output()
