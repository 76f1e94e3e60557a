"""Killed at the worst moment: nothing is lost, nothing goes back, nothing becomes a letter.

Spark is killed once. What a kill between two calls of BigQuery leaves behind is not Spark's doing: at the other moments
the consumer without Spark is killed, which starts again in seconds.
"""

import json
from collections import Counter
from datetime import timedelta

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerInstance, Value, Write
from shared.contracts.timestamps import parse_timestamp
from tests.conftest import PROJECT
from tests.e2e.rig import PublishedChange, Rig, first_section
from tests.e2e.standing import Standing

pytestmark = pytest.mark.timeout(600)  # services are started again and again

LEASE = "3s"
"""How long the partitions of a reader that was killed stay its own: the next reader waits for that."""


def singer(key: int, name: str) -> Write:
    return Write("insert_or_update", "Singers", {"Id": key, "Name": name})


@pytest.mark.parametrize(("when", "pipeline"), [("before", "without_spark"), ("after", "standing")])
def test_the_consumer_killed_in_mid_batch_loses_nothing(
    request: pytest.FixtureRequest, spanner_instance: SpannerInstance, processes: Processes, when: str, pipeline: str
) -> None:
    rig = Rig(request.getfixturevalue(pipeline), spanner_instance, processes)
    consumer, reader = rig.consumer(), rig.start_reader()
    rig.wait_until_ready(consumer, reader)
    rig.commit(*[singer(key, "before") for key in range(20)])
    rig.wait_until_equal()

    # BigQuery has taken the rows of the batch or not: the consumer never hears of it
    with rig.fault(action="stall", when=when, table=rig.in_bigquery("Singers")):
        rig.commit(*[singer(key, f"{when} the kill") for key in range(0, 20, 2)])
        rig.commit(*[Write("delete", "Singers", {"Id": key}) for key in range(1, 20, 4)])
        rig.wait(lambda: rig.stats()["faults_met"], "an append without an answer")
        consumer.process.kill()
    rig.wait_until_ready(rig.consumer())
    rig.wait_until_equal()
    assert rig.letters() == []
    rig.processes.end_all()
    rig.drop()


@pytest.mark.parametrize(("postgresql", "when"), [(False, "before"), (True, "after")])
def test_the_consumer_killed_while_it_adds_a_column_loses_nothing(
    without_spark: Standing, spanner_instance: SpannerInstance, processes: Processes, when: str, *, postgresql: bool
) -> None:
    rig = Rig(without_spark, spanner_instance, processes, postgresql=postgresql)
    table, key, name = ("singers", "id", "name") if postgresql else ("Singers", "Id", "Name")
    kind = "numeric" if postgresql else "ARRAY<STRING(MAX)>"
    value: Value = "-" + "9" * 60 + ".10" if postgresql else ("", "NaN")
    # all changes in one task, so that no other task alters the table while one waits for its answer
    consumer, reader = rig.consumer(), rig.start_reader(BUCKETS="1")
    rig.wait_until_ready(consumer, reader)
    rig.commit(*[Write("insert", table, {key: number}) for number in range(20)])
    rig.wait_until_equal([table], timeout=timedelta(seconds=120))

    altered, in_bigquery = rig.named(table), rig.in_bigquery(table)
    # BigQuery has altered the table or not: the consumer never hears of it
    with rig.fault(action="stall", on="rest", method="PATCH", when=when, table=in_bigquery, times=1):
        rig.commit(*[Write("update", table, {key: number, name: "in the old shape"}) for number in (1, 2)])
        rig.database.alter(f"ALTER TABLE {altered} ADD COLUMN added {kind}")
        rig.commit(*[Write("update", table, {key: number, "added": value}) for number in range(0, 20, 2)])
        rig.commit(Write("delete", table, {key: 4}), Write("replace", table, {key: 6}))
        rig.wait(lambda: rig.stats()["faults_met"], "an alteration without an answer")
        consumer.process.kill()
        assert ("added" in rig.target.columns(altered)) is (when == "after")
        rig.commit(Write("insert", table, {key: 4, "added": value}))
        rig.wait_until_ready(rig.consumer())
        rig.wait_until_equal([table], timeout=timedelta(seconds=120))
    # now what the dead one had asked for is done, or is not any more
    rig.commit(Write("delete", table, {key: 4}), Write("update", table, {key: 6, "added": value}))
    rig.wait_until_equal([table], timeout=timedelta(seconds=120))
    assert rig.letters() == []
    rig.processes.end_all()
    rig.drop()


def test_the_reader_killed_between_publish_and_watermark_publishes_again_and_loses_nothing(rig: Rig) -> None:
    consumer, reader = rig.consumer(), rig.start_reader(LEASE_DURATION=LEASE)
    rig.wait_until_ready(consumer, reader)
    seen = Counter[PublishedChange]()

    def published(prefix: str) -> set[PublishedChange]:
        for message in rig.published():
            seen.update(message.changes())
        return {change for change in seen if change.sequence.startswith(prefix)}

    caught = set[PublishedChange]()
    for attempt in range(10):
        committed = rig.commit(*[singer(key, f"attempt {attempt}") for key in range(10)])
        prefix = first_section(committed)
        rig.wait(lambda prefix=prefix: len(published(prefix)) == 10, "its ten changes to be published")  # type: ignore[misc]
        reader.process.kill()
        saved = [
            parse_timestamp(str(row["saved"]))
            for row in rig.partitions.query(
                "SELECT FORMAT_TIMESTAMP('%Y-%m-%dT%H:%M:%E9SZ', watermark) AS saved FROM millrace_partitions "
                "WHERE state != 'FINISHED'"
            )
        ]
        reader = rig.start_reader(LEASE_DURATION=LEASE)
        rig.wait_until_ready(reader)
        if max(saved) < committed:
            caught |= published(prefix)
        if len(caught) == 20:
            break
    assert len(caught) == 20, "the kill never fell between publish and watermark"

    rig.commit(singer(3, "after it all"), Write("delete", "Singers", {"Id": 4}))
    rig.wait_until_equal()

    def all_twice() -> bool:
        published("")
        return all(seen[change] >= 2 for change in caught)

    rig.wait(all_twice, "all that had no watermark to be published again")
    assert rig.letters() == []


def test_partitions_that_live_for_a_second_lose_nothing(standing: Standing, processes: Processes) -> None:
    with emulators.spanner_emulator(processes, override_change_stream_partition_token_alive_seconds="1") as address:
        instance = SpannerInstance.create(address, PROJECT, "churning")
        rig = Rig(standing, instance, processes)
        reader = rig.start_reader(LEASE_DURATION=LEASE)
        rig.wait_until_ready(rig.consumer(), reader)

        committed, there = set[tuple[str, int]](), set[int]()
        for number in range(150):
            keys = range(number % 7, 40, 7)
            at = first_section(rig.commit(*[singer(key, f"at {number}") for key in keys]))
            committed |= {(at, key) for key in keys}
            there |= {*keys}
            if number % 5 == 0 and (gone := number % 40) in there:
                committed.add((first_section(rig.commit(Write("delete", "Singers", {"Id": gone}))), gone))
                there.remove(gone)
            if number == 75:
                reader.process.kill()  # in the middle of it all, partitions half handed on
                reader = rig.start_reader(LEASE_DURATION=LEASE)
                rig.wait_until_ready(reader)
        rig.wait(lambda: rig.counted(reader, "millrace_partitions_split_total"), "a partition to split")
        rig.wait(lambda: rig.counted(reader, "millrace_partitions_merged_total"), "partitions to merge")
        rig.wait(lambda: finished(rig) >= 20, "many partitions to be finished")
        rig.wait_until_equal(timeout=timedelta(seconds=120))

        changes = [change for message in rig.published() for change in message.changes()]
        assert {(change.sequence[:17], int(json.loads(change.key)["Id"])) for change in changes} == committed
        assert rig.letters() == []
        processes.end_all()  # before their emulator


def finished(rig: Rig) -> int:
    """Return how many partitions have been read to their end and handed on to their children."""
    (row,) = rig.partitions.query("SELECT COUNT(*) AS number FROM millrace_partitions WHERE state = 'FINISHED'")
    return int(str(row["number"]))
