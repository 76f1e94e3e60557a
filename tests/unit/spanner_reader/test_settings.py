from datetime import timedelta

import pytest

from services.spanner_reader.settings import Settings
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import parse_timestamp
from shared.runtime.settings import read_settings

REQUIRED = {
    "GOOGLE_CLOUD_PROJECT": "p",
    "SPANNER_INSTANCE": "i",
    "SPANNER_DATABASE": "d",
    "CHANGE_STREAM": "s",
    "TOPIC": "t",
    "DEAD_LETTER_TOPIC": "l",
}


def read(**variables: str) -> Settings:
    return read_settings(Settings, REQUIRED | variables)


def test_what_has_to_be_set_is_named_in_one_error() -> None:
    with pytest.raises(MisconfiguredError) as error:
        read_settings(Settings, {})
    for variable in REQUIRED:
        assert f"{variable} is not set" in str(error.value)


@pytest.mark.parametrize("interval", ["1000ms", "300000ms", "10s"])
def test_a_heartbeat_interval_that_spanner_takes(interval: str) -> None:
    assert timedelta(seconds=1) <= read(HEARTBEAT_INTERVAL=interval).heartbeat_interval <= timedelta(minutes=5)


@pytest.mark.parametrize("interval", ["999ms", "300001ms"])
def test_a_heartbeat_interval_that_spanner_refuses(interval: str) -> None:
    with pytest.raises(MisconfiguredError, match="HEARTBEAT_INTERVAL"):
        read(HEARTBEAT_INTERVAL=interval)


def test_the_partition_table_is_in_the_watched_database_unless_another_is_named() -> None:
    assert read().partition_database_path == "projects/p/instances/i/databases/d"
    assert read(PARTITION_DATABASE="other").partition_database_path == "projects/p/instances/i/databases/other"
    assert read().source == "//spanner.googleapis.com/projects/p/instances/i/databases/d/changeStreams/s"


def test_times_keep_all_their_digits_and_the_end_is_not_before_the_start() -> None:
    start = "2022-05-01T09:00:00.123456789Z"
    assert read(START_TIMESTAMP=start).start_timestamp == parse_timestamp(start)
    with pytest.raises(MisconfiguredError, match="END_TIMESTAMP is before START_TIMESTAMP"):
        read(START_TIMESTAMP=start, END_TIMESTAMP="2022-05-01T09:00:00Z")


@pytest.mark.parametrize("variable", ["CHANGE_STREAM", "PARTITION_TABLE"])
def test_a_name_that_goes_into_a_statement_is_an_identifier(variable: str) -> None:
    with pytest.raises(MisconfiguredError, match=variable):
        read(**{variable: "s; DROP TABLE t"})
