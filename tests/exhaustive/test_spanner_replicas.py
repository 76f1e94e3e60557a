"""Three replicas of the Spanner reader that come and go. What is checked is what the topic holds.

Partitions live for two seconds, so they change owners and end all the time.
"""

import random
import time
from collections.abc import Iterator

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerInstance
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.pubsub.channels import open_channel
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology
from tests.worlds.churn import STEPS, Churn
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline


@pytest.fixture
def pipeline(new_processes: Processes) -> Iterator[SpannerPipeline]:
    """Return a pipeline on emulators of its own."""
    flags = {
        "override_change_stream_partition_token_alive_seconds": "2",
        # The emulator looks for what is before an instant, and then for what is a microsecond behind it: a commit at
        # that instant is in no stream (its source: frontend/handlers/change_streams.cc). So it looks less often.
        "change_streams_partition_query_chop_interval": "1s",
    }
    with (
        emulators.spanner_emulator(new_processes, **flags) as spanner,
        emulators.pubsub_emulator(new_processes) as pubsub,
        open_channel(pubsub) as channel,
    ):
        instance = SpannerInstance.create(spanner, "millrace-test", "replicas")
        made = instance.create_database(DDL), instance.create_database([])
        yield SpannerPipeline(*made, pubsub, channel, a_topology(channel), new_processes)
        new_processes.end_all()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_replicas_that_come_and_go_publish_every_change_and_save_no_watermark_before_it_is_confirmed(
    pipeline: SpannerPipeline, seed: int
) -> None:
    seen: list[tuple[float, Nanoseconds]] = []  # seconds since 1970, and the low watermark that was saved by then

    def change(chance: random.Random) -> None:
        pipeline.write(rows=chance.choice((1, 1, 1, 10)))

    def see() -> None:
        low = pipeline.low_watermark()
        seen.append((time.time(), low))

    churn = Churn(pipeline, seed, change, pipeline.pull, see)
    churn.run()
    pipeline.wait_for_all()
    last = pipeline.committed[-1][1]
    pipeline.wait(
        lambda: pipeline.low_watermark() > last, "all partitions to get behind the last change", pipeline.pull
    )

    early = [
        (key, format_timestamp(commit), format_timestamp(low))
        for seen_at, low in seen
        for key, commit in pipeline.committed
        if commit < low and pipeline.published_at[key, format_timestamp(commit)] > seen_at
    ]
    assert not early, "a watermark was saved before these changes were with Pub/Sub"
    lows = [low for _seen_at, low in seen]
    assert lows == sorted(lows), "a watermark went back"
    assert len(set(lows)) > len(STEPS), "the watermark moved all the time"
    assert sum(bool(events(one, "partition_claimed")) for one in churn.replicas) > 1, "they share the partitions"
