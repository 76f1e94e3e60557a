"""Killed at the worst moment, or left alone for long: nothing is lost, nothing goes back, nothing becomes a letter."""

import time
from collections.abc import Callable
from datetime import timedelta

from deploy.local import emulators
from deploy.local.processes import Processes
from deploy.local.services import start_consumer, start_reader, wait_until_ready
from deploy.local.source import SpannerInstance, Write
from shared.contracts.change_batch import decode_batch
from shared.contracts.timestamps import parse_timestamp
from tests.conftest import PROJECT
from tests.e2e.rig import ACK_DEADLINE, Rig


def singer(key: int, name: str) -> Write:
    return Write("insert_or_update", "Singers", {"Id": key, "Name": name})


def test_the_consumer_killed_in_mid_batch_loses_nothing(rig: Rig) -> None:
    consumer = start_consumer(rig.processes, rig.pipeline)
    reader = start_reader(rig.processes, rig.pipeline, start=rig.start)
    wait_until_ready(rig.processes, consumer, reader)
    rig.commit(*[singer(key, "before") for key in range(20)])
    rig.wait_until_equal()

    table = f"{rig.pipeline.project}.{rig.pipeline.dataset}.Singers"
    for when in ("before", "after"):  # the rows of the batch are taken or not, the consumer never hears of it
        with rig.fault(action="stall", when=when, table=table):
            rig.commit(*[singer(key, f"{when} the kill") for key in range(0, 20, 2)])
            rig.commit(*[Write("delete", "Singers", {"Id": key}) for key in range(1, 20, 4)])
            rig.wait(lambda: rig.stats()["faults_met"], "an append without an answer")
            consumer.process.kill()
        consumer = start_consumer(rig.processes, rig.pipeline)
        wait_until_ready(rig.processes, consumer)
        rig.wait_until_equal()
    assert rig.letters() == []


def test_the_reader_killed_between_publish_and_watermark_publishes_again_and_loses_nothing(rig: Rig) -> None:
    consumer = start_consumer(rig.processes, rig.pipeline)
    reader = start_reader(rig.processes, rig.pipeline, start=rig.start)
    wait_until_ready(rig.processes, consumer, reader)
    caught = 0
    for attempt in range(10):
        rig.published()
        committed = rig.commit(*[singer(key, f"attempt {attempt}") for key in range(10)])
        rig.wait(rig.published, "the changes to be published")
        reader.process.kill()
        saved = [
            parse_timestamp(str(row["saved"]))
            for row in rig.partitions.query(
                "SELECT FORMAT_TIMESTAMP('%Y-%m-%dT%H:%M:%E9SZ', watermark) AS saved FROM millrace_partitions "
                "WHERE state != 'FINISHED'"
            )
        ]
        caught += max(saved) < committed
        reader = start_reader(rig.processes, rig.pipeline, start=rig.start)
        wait_until_ready(rig.processes, reader)
        if caught == 2:
            break
    assert caught == 2, "the kill never fell between publish and watermark"

    rig.commit(singer(3, "after it all"), Write("delete", "Singers", {"Id": 4}))
    rig.wait_until_equal()
    again = [message for message in rig.published() if len(decode_batch(message.data))]
    assert sum(len(decode_batch(message.data)) for message in again) >= 10, "what had no watermark is published again"
    assert rig.letters() == []


def test_bigquery_away_for_five_ack_deadlines_means_no_redelivery_and_no_letter(rig: Rig) -> None:
    consumer = start_consumer(rig.processes, rig.pipeline)
    reader = start_reader(rig.processes, rig.pipeline, start=rig.start)
    wait_until_ready(rig.processes, consumer, reader)
    rig.commit(*[singer(key, "before") for key in range(10)])
    rig.wait_until_equal()

    with rig.fault(action="close", status="UNAVAILABLE"):
        rig.commit(*[singer(key, "while away") for key in range(10)])
        rig.wait(lambda: rig.stats()["refused"] > 0, "the first refusal")
        time.sleep(5 * ACK_DEADLINE.total_seconds())
        rig.processes.check()
        rig.commit(*[singer(key, "later while away") for key in range(5)])
    rig.wait_until_equal()

    published = len(rig.published())
    rig.wait(lambda: rig.counted(consumer, "millrace_leases_acked_total") >= published, "everything to be acked")
    assert rig.counted(consumer, "millrace_leases_taken_total") == published, "each message was delivered once"
    assert rig.letters() == []


def test_partitions_that_live_for_a_second_lose_nothing(
    new_rig: Callable[[SpannerInstance], Rig], processes: Processes
) -> None:
    with emulators.spanner_emulator(processes, override_change_stream_partition_token_alive_seconds="1") as address:
        instance = SpannerInstance.create(address, PROJECT, "churning")
        rig = new_rig(instance)
        consumer = start_consumer(processes, rig.pipeline)
        reader = start_reader(processes, rig.pipeline, start=rig.start)
        wait_until_ready(processes, consumer, reader)

        for number in range(150):
            rig.commit(*[singer(key, f"at {number}") for key in range(number % 7, 40, 7)])
            if number % 5 == 0:
                rig.commit(Write("delete", "Singers", {"Id": number % 40}))
            if number == 75:
                reader.process.kill()  # in the middle of it all, partitions half handed on
                reader = start_reader(processes, rig.pipeline, start=rig.start)
                wait_until_ready(processes, reader)
        split = rig.wait(lambda: rig.counted(reader, "millrace_partitions_split_total"), "a partition to split")
        merged = rig.wait(lambda: rig.counted(reader, "millrace_partitions_merged_total"), "partitions to merge")
        rig.wait_until_equal(patience=timedelta(seconds=120))

        assert split + merged >= 2
        assert rig.letters() == []
        rig.close()
        processes.end_all()  # before their emulator
