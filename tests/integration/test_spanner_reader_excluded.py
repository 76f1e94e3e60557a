"""Options that keep changes out of the stream, found by a refused start and marked. The emulator knows none of them."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase
from shared.runtime.service import MISCONFIGURED
from tests.integration.readers import STARTS
from tests.worlds.scripted_reader import Scripted, scripted_reader

pytestmark = pytest.mark.integration


@pytest.fixture
def scripted(
    database: Callable[..., SpannerDatabase], pubsub_emulator: str, new_processes: Processes
) -> Iterator[Scripted]:
    """Return a pipeline whose change stream is scripted, with four partitions."""
    with scripted_reader(database, pubsub_emulator, new_processes) as scripted:
        yield scripted


def test_tables_found_by_a_refused_start_stay_pending_resync_when_the_stream_watches_them_again(
    scripted: Scripted,
) -> None:
    def refused() -> str:
        reader = scripted.pipeline.launch(SPANNER_EMULATOR_HOST=scripted.server.address)
        assert reader.wait(STARTS) == MISCONFIGURED, reader.obituary()
        said = reader.output()
        reader.end()
        return said

    def marks() -> int:
        (row,) = scripted.pipeline.partitions.query(
            "SELECT COUNT(*) AS marked FROM millrace_partitions_tables WHERE needs_resync LIKE '%by_the_stream%'"
        )
        return int(str(row["marked"]))

    scripted.server.options = {"exclude_delete": "true"}
    assert "exclude_delete = false" in refused()
    assert not scripted.pipeline.partitions.query(
        "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'millrace%'"
    )  # there was nothing before: nothing is remembered

    scripted.server.options = {}
    reader = scripted.start(SNAPSHOT="never")
    reader.ask_to_end()
    assert reader.wait(timedelta(seconds=10)) == 0
    reader.end()
    assert marks() == 0

    scripted.server.options = {"exclude_delete": "true"}
    said = refused()
    assert "exclude_delete = false" in said
    assert "table_needs_resync" in said
    assert marks() == 1

    scripted.server.options = {}
    scripted.start()
    assert marks() == 1
