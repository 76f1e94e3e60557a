"""What a service is told by its environment, and what is kept from it."""

from pathlib import Path

from deploy.local.demo.latency import Latencies
from deploy.local.platform.emulators import free_port
from deploy.local.platform.services import child_environment
from shared.contracts.timestamps import Nanoseconds
from tests.worlds.pipeline_settings import PIPELINE


def test_reader_and_consumer_agree_on_what_lies_between_them() -> None:
    reader, consumer = PIPELINE.reader_environment(), PIPELINE.consumer_environment(Path("/c"))

    assert reader["DEAD_LETTER_TOPIC"] == consumer["DEAD_LETTER_TOPIC"] == PIPELINE.topology.dead_letter_topic
    assert reader["TOPIC"] == PIPELINE.topology.topic
    assert consumer["SUBSCRIPTION"] == PIPELINE.topology.subscription
    assert reader["PUBSUB_EMULATOR_HOST"] == consumer["PUBSUB_EMULATOR_HOST"] == "127.0.0.1:2"
    assert consumer["BIGQUERY_DATASET"] == "mill_race"


def test_a_reader_is_given_where_to_start_only_if_asked() -> None:
    assert "START_TIMESTAMP" not in PIPELINE.reader_environment()
    assert PIPELINE.reader_environment(Nanoseconds(1_500_000_000))["START_TIMESTAMP"] == "1970-01-01T00:00:01.5Z"


def test_the_partition_table_is_with_the_source_unless_it_has_a_database() -> None:
    assert PIPELINE.reader_environment()["PARTITION_DATABASE"] == "d"


def test_no_setting_of_a_service_comes_in_from_the_shell() -> None:
    shell = {
        "PATH": "/bin",
        "HOME": "/h",
        "JAVA_HOME": "/j",
        "TOPIC": "mine",
        "PORT": "1",
        "SPANNER_EMULATOR_HOST": "x",
    }

    assert child_environment(shell) == {"PATH": "/bin", "HOME": "/h", "JAVA_HOME": "/j"}


def test_percentiles_are_measured_values() -> None:
    latencies = Latencies([0.3, 0.1, 0.2, 9.0], 1, 0)

    assert latencies.percentile(50) == 0.2
    assert latencies.percentile(99) == 9.0
    assert "1 given up" in str(latencies)
    assert str(Latencies([], 0, 3)) == "no sample was seen (0 given up, 3 unseen)"


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(1000)]  # of some 14,000: without a memory of them 35 would come twice

    assert len(set(ports)) == len(ports)
