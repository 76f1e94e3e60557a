"""Options that keep changes out of the stream, found by a refused start and marked. The emulator knows none of them."""

from collections.abc import Callable, Iterator

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from shared.contracts.timestamps import Nanoseconds
from tests.integration.readers import stop
from tests.integration.scripted_spanner import ScriptedSpanner, ScriptedStream
from tests.unit.spanner_reader.scripts import children
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def scripted(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> Iterator[tuple[SpannerPipeline, ScriptedSpanner]]:
    """Return a pipeline, and a server of its change stream whose options are scripted."""
    pipeline = spanner_pipeline(database(*DDL), database())
    begun = pipeline.database.now()
    stream = ScriptedStream(Nanoseconds(begun - 3_600_000_000_000))
    stream.add(ROOT, children(begun, PartitionToken("token_1")))
    server = ScriptedSpanner("Everything", stream, pipeline.database.instance.address)
    yield pipeline, server
    pipeline.processes.end_all()
    server.stop()


def test_tables_found_by_a_refused_start_stay_pending_resync_when_the_stream_watches_them_again(
    scripted: tuple[SpannerPipeline, ScriptedSpanner],
) -> None:
    pipeline, server = scripted
    settings = {"SPANNER_EMULATOR_HOST": server.address, "LEASE_DURATION": "3s"}

    def requests() -> int:
        (row,) = pipeline.partitions.query(
            "SELECT COUNT(*) AS marked FROM millrace_partitions_tables WHERE needs_resync LIKE '%by_the_stream%'"
        )
        return int(str(row["marked"]))

    server.options = {"exclude_delete": "true"}
    assert "exclude_delete = false" in pipeline.refused(**settings)
    assert not pipeline.partitions.query(
        "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'millrace%'"
    )  # there was nothing before: nothing is remembered

    server.options = {}
    reader = pipeline.start(SNAPSHOT="never", **settings)
    stop(reader)
    assert requests() == 0

    server.options = {"exclude_delete": "true"}
    output = pipeline.refused(**settings)
    assert "exclude_delete = false" in output
    assert "resync_requested" in output
    assert requests() == 1

    server.options = {}
    pipeline.start(**settings)
    assert requests() == 1
