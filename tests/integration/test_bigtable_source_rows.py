"""What is true of the rows of a Bigtable table, asked of the reader's command `rows`, before emulator and front."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cdc_consumer.adapters.source_rows import opened_source
from shared.contracts.change_batch import decode_batch
from shared.contracts.errors import MisconfiguredError
from shared.contracts.source_rows import Done
from shared.pubsub.names import published_to, short_name
from shared.runtime.service import MISCONFIGURED
from shared.runtime.stop import Stop
from tests.integration.bigtable_front import PROJECT, Front, delete_row, set_cell
from tests.integration.pubsub_topics import a_topology, pull
from tests.worlds.bigtable_pipeline import BigtablePipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(front: Front, bigtable_pipeline: Callable[..., BigtablePipeline]) -> BigtablePipeline:
    """Return a pipeline on a table of its own, with the families f and g."""
    return bigtable_pipeline(front.table("f", "g"))


def rows_of(batches: list[bytes | Done]) -> list[str]:
    decoded = [decode_batch(batch) for batch in batches if isinstance(batch, bytes)]
    assert {batch.header.origin for batch in decoded} == {"snapshot"}
    return [json.loads(bytes(key))["row_key"] for batch in decoded for key in batch.keys]


def test_rows_are_listed_looked_up_and_published_and_published_rows_win_over_applied_ones(
    pipeline: BigtablePipeline,
) -> None:
    environ = dict(os.environ) | pipeline.environment()
    name = pipeline.table.name.rpartition("/")[2]
    pipeline.start()
    for number in range(20):
        pipeline.table.write(b"%02d" % number, set_cell("f", b"q", b"%d" % number))
    pipeline.table.write(b"07", delete_row())
    pipeline.wait_until_equal("f", "g")
    applied = max(sequence for sequence, _row in pipeline.newest.values())

    with opened_source("python -m services.bigtable_reader rows", environ, Stop()) as source:
        listed = source.listed()
        assert (listed.names, listed.retention) == ((name,), 86_400)
        header, _done = source.describe(name)
        assert [column.name for column in decode_batch(header).header.columns] == ["row_key", "f", "g"]
        answers = list(source.read(name))
        assert rows_of(answers) == [f"{number:02d}" for number in range(20) if number != 7]
        assert isinstance(answers[-1], Done)
        assert answers[-1].rows == 19
        assert rows_of(list(source.read(name, after=("04",), until=("06",)))) == ["05", "06"]
        batches, done = source.read_keys(name, [("03",), ("07",), ("never",)])
        assert rows_of(list(batches)) == ["03"]
        assert (done.rows, done.absent) == (1, 2)
        with pytest.raises(MisconfiguredError, match="keeps no earlier state"):
            list(source.read(name, "2026-11-22T10:00:00Z"))
        with pytest.raises(MisconfiguredError, match="not the one that is mirrored"):
            source.describe("another")
        done = source.publish(name, [("03",), ("never",)], above=applied)
        assert (done.rows, done.absent) == (1, 1)
        assert done.sequence > applied

    def published() -> bool:
        newest = pipeline.newest
        return all(key in newest and newest[key][0] >= done.sequence for key in (b"03", b"never"))

    pipeline.wait(published, "what was published", pipeline.pull)
    assert pipeline.newest[b"never"][1] is None
    assert pipeline.mirror() == pipeline.source("f", "g")


def test_a_command_with_another_tables_file_than_the_readers_answers_nothing(
    pipeline: BigtablePipeline, tmp_path: Path
) -> None:
    pipeline.start()
    older = tmp_path / "tables.toml"
    older.write_text('[tables."*"]\nvalues = "text"\nversions = 2\n')

    code, output = pipeline.run_command("rows", TABLES_FILE=str(older))

    assert code == MISCONFIGURED
    assert "watches something else than that of the reader that inspected the table last (values, versions)" in output


def test_rows_with_another_topic_than_the_readers_lists_rows_and_publishes_none(
    pipeline: BigtablePipeline,
) -> None:
    pipeline.start()
    pipeline.table.write(b"row", set_cell("f", b"q", b"v"))
    pipeline.wait_until_equal("f", "g")
    name, other = pipeline.table.name.rpartition("/")[2], a_topology(pipeline.channel)
    environ = dict(os.environ) | pipeline.environment() | {"TOPIC": short_name(other.topic)}

    with opened_source("python -m services.bigtable_reader rows", environ, Stop()) as source:
        batches, _done = source.read_keys(name, [("row",)])
        assert rows_of(list(batches)) == ["row"]
        ours, theirs = (published_to(PROJECT, one.topic, pipeline.pubsub) for one in (other, pipeline.topology))
        with pytest.raises(MisconfiguredError, match=f"publish to {theirs}, and this one would to {ours}"):
            source.publish(name, [("row",)])

    assert pull(pipeline.channel, other.subscription) == []
