"""Some keys of a table again, from the emulator: whole keys and prefixes, descending parts and NULL."""

import json
from collections.abc import Callable

import pytest

from deploy.local.platform.source import SpannerDatabase, Write
from tests.worlds.spanner_pipeline import SpannerPipeline
from tests.worlds.spanner_snapshotting import DDL, Topic, fill

pytestmark = pytest.mark.integration

SEATS = [("C", 1), ("C", 2), ("Y", 1), (None, 7)]


@pytest.fixture
def pipeline(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerPipeline:
    """Return a pipeline of a table, and of one interleaved in it whose second key part descends."""
    return spanner_pipeline(database(*DDL), database())


def test_only_the_keys_that_were_asked_for_come_and_the_table_counts_as_no_more_complete(
    pipeline: SpannerPipeline,
) -> None:
    fill(pipeline.database, 50)
    seats = [{"Id": key, "Class": name, "Number": number, "Taken": True} for key in (3, 4) for name, number in SEATS]
    pipeline.database.commit([Write("insert", "Seats", seat) for seat in seats])
    pipeline.start(SNAPSHOT="never")
    topic = Topic(pipeline)

    def read(table: str, *keys: str, rows: int) -> set[str]:
        """Return the rows that a snapshot of some keys brings, as JSON arrays of their keys."""
        before = set(topic.live(table))
        asked = pipeline.run_command("snapshot", table, *keys)
        assert asked[0] == 0, asked[1]
        code, output = pipeline.run_command("snapshot", "--status", "--watch", "--json")
        (shown,) = [one for one in json.loads(output)["snapshots"] if one["table"] == table]
        assert (code, shown["rows"], shown["complete_since"]) == (0, rows, None)
        topic.wait_for("the rows", lambda: len(set(topic.live(table)) - before) == rows)
        found = [json.loads(key) for key in set(topic.live(table)) - before]
        return {json.dumps([one[name] for name in ("Id", "Class", "Number") if name in one]) for one in found}

    assert read("Planes", "--after", "[10]", "--until", '["12"]', rows=2) == {'["11"]', '["12"]'}
    # Y comes before C, and NULL last, for Class descends; a prefix is all rows that begin with it.
    assert read("Seats", "--after", '["3","Y"]', "--until", '["3","C","1"]', rows=1) == {'["3", "C", "1"]'}
    assert read("Seats", "--after", '["3","C"]', "--until", "[3]", rows=1) == {'["3", null, "7"]'}
    assert read("Seats", "--after", "[3]", rows=4) == {json.dumps(["4", name, str(number)]) for name, number in SEATS}
    assert pipeline.run_command("snapshot", "Planes", "--after", '["x"]')[0] == 2
    code, output = pipeline.run_command("snapshot", "Seats", "--after", '["3","C"]', "--until", '["3","Y"]')
    assert (code, "swap them" in output) == (2, True)
