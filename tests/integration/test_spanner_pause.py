"""The stream and a table paused and resumed, over restarts, with two readers and the emulator's own stream."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core.exceptions import Aborted, DeadlineExceeded

from deploy.local.platform.source import SpannerDatabase, Write
from services.spanner_reader.adapters.spanner.connection import SpannerDatabaseClient
from services.spanner_reader.wiring.commands import command
from tests.integration.log_lines import events
from tests.worlds.spanner_pipeline import SpannerPipeline
from tests.worlds.spanner_snapshotting import DDL, Topic

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerPipeline:
    """Return a pipeline of a table, and of one interleaved in it."""
    return spanner_pipeline(database(*DDL), database())


def plane(key: int, name: str | None) -> Write:
    return (
        Write("delete", "Planes", {"Id": key}) if name is None else Write("insert", "Planes", {"Id": key, "Name": name})
    )


def seat(key: int) -> Write:
    return Write("insert", "Seats", {"Id": key, "Class": "C", "Number": 1, "Taken": True})


def keys(topic: Topic, table: str) -> set[int]:
    return {int(json.loads(key)["Id"]) for key in topic.live(table)}


def test_a_stream_that_is_paused_stays_so_over_a_restart_and_goes_on_where_it_was(pipeline: SpannerPipeline) -> None:
    assert pipeline.run_command("pause")[0] == 2  # no reader was ever started
    first, second = pipeline.start(), pipeline.start()
    topic = Topic(pipeline)
    pipeline.database.commit([plane(1, "a")])
    topic.wait_for("what is written before", lambda: keys(topic, "Planes") == {1})
    code, output = pipeline.run_command("pause")
    assert (code, "is paused now" in output) == (0, True)
    for reader in (first, second):
        topic.wait_for("them to notice", lambda reader=reader: bool(events(reader, "stream_paused")))  # type: ignore[misc]
    topic.wait_for("them to let go", lambda: not any(one["partitions"] for one in pipeline.status()[1]["readers"]))
    pipeline.database.commit([plane(2, "b")])
    second.kill()
    third = pipeline.start()
    assert events(third, "partition_claimed") == []
    code, shown = pipeline.status()
    assert (code, shown["state"], shown["paused_since"] is not None) == (0, "paused", True)
    assert "resume" in pipeline.run_command("status")[1]
    assert "is paused since" in pipeline.run_command("doctor")[1]
    topic.pull()
    assert keys(topic, "Planes") == {1}

    assert pipeline.run_command("resume")[0] == 0
    topic.wait_for("what was written meanwhile", lambda: keys(topic, "Planes") == {1, 2})
    assert pipeline.run_command("resume")[0] == 1
    assert pipeline.status()[1]["state"] == "reading"


def test_what_a_paused_table_drops_is_brought_by_a_snapshot_after_it(pipeline: SpannerPipeline) -> None:
    reader = pipeline.start()
    topic = Topic(pipeline)
    pipeline.database.commit([plane(1, "a"), plane(2, "a"), seat(1)])
    topic.wait_for("what is written before", lambda: keys(topic, "Seats") == {1})
    assert pipeline.run_command("pause", "Plains")[0] == 2
    assert pipeline.run_command("pause", "Planes")[0] == 0
    topic.wait_for("it to notice", lambda: bool(events(reader, "table_paused")))
    pipeline.database.commit([plane(3, "b"), seat(3), plane(2, None)])
    topic.wait_for("the other table", lambda: keys(topic, "Seats") == {1, 3})
    topic.wait_for("what is dropped to be said", lambda: bool(events(reader, "changes_dropped")))
    (dropped,) = events(reader, "changes_dropped")
    assert dropped["table"] == "Planes"
    code, shown = pipeline.status()
    assert (code, shown["paused_tables"][0]["table"], shown["pending_resync"][0]["table"]) == (1, "Planes", "Planes")
    assert "resume Planes" in shown["pending_resync"][0]["fix"]
    assert pipeline.run_command("synced", "Planes")[0] == 2

    reader.kill()  # and it stays so
    reader = pipeline.start()
    pipeline.database.commit([plane(4, "c"), seat(4)])
    topic.wait_for("the other table", lambda: keys(topic, "Seats") == {1, 3, 4})
    assert keys(topic, "Planes") == {1, 2}
    assert pipeline.run_command("resume", "Planes")[0] == 0
    pipeline.database.commit([plane(5, "d")])
    topic.wait_for("what is written after", lambda: keys(topic, "Planes") == {1, 2, 5})
    code, shown = pipeline.status()
    assert (code, shown["paused_tables"], shown["pending_resync"][0]["table"]) == (1, [], "Planes")
    assert pipeline.run_command("snapshot", "Planes")[0] == 0
    topic.wait_for("all rows", lambda: keys(topic, "Planes") >= {1, 3, 4, 5})
    topic.wait_for("its mark to go", lambda: pipeline.status()[1]["pending_resync"] == [])
    assert keys(topic, "Planes") == {1, 2, 3, 4, 5}  # what was deleted is for `delete-missing-rows`


@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_command_whose_commit_was_aborted_or_not_answered_makes_it_again(
    pipeline: SpannerPipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer_lost: bool,
) -> None:
    reader = pipeline.start()
    topic = Topic(pipeline)
    topic.wait_for("it to see the table", lambda: pipeline.run_command("pause", "Planes")[0] == 0)
    assert pipeline.run_command("resume", "Planes")[0] == 0
    reader.end()
    commit, failures = SpannerDatabaseClient._commit, list[Exception]()

    async def commit_later(self: SpannerDatabaseClient, *arguments: Any) -> None:
        if not failures:
            return await commit(self, *arguments)
        if answer_lost:
            await commit(self, *arguments)
        raise failures.pop()

    monkeypatch.setattr(SpannerDatabaseClient, "_commit", commit_later)
    for words in (["synced", "Planes"], ["topic"]):
        error = DeadlineExceeded if answer_lost else Aborted
        failures.append(error("made up"))
        assert command(words, pipeline.environment()) == 0
        assert failures == []
    shown = capsys.readouterr().out
    assert "the resync request is deleted" in shown
