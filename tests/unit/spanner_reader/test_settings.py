import asyncio
import re
from datetime import timedelta

import grpc
import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud.spanner_v1 import ExecuteSqlRequest
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcAsyncIOTransport, SpannerGrpcTransport

from services.spanner_reader.adapters.spanner.connection import CallOptions
from services.spanner_reader.settings import Settings, replicas
from services.spanner_reader.wiring.stores import databases, open_channels
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


@pytest.mark.parametrize("topic", ["t", "projects/p/topics/t"])
def test_dead_letters_do_not_go_to_the_topic_of_changes(topic: str) -> None:
    with pytest.raises(MisconfiguredError, match="TOPIC and DEAD_LETTER_TOPIC are the same"):
        read(DEAD_LETTER_TOPIC=topic)


@pytest.mark.parametrize("interval", ["1000ms", "300000ms", "10s"])
def test_a_heartbeat_interval_that_spanner_takes(interval: str) -> None:
    assert timedelta(seconds=1) <= read(HEARTBEAT_INTERVAL=interval).heartbeat_interval <= timedelta(minutes=5)


@pytest.mark.parametrize("interval", ["999ms", "300001ms"])
def test_a_heartbeat_interval_that_spanner_refuses(interval: str) -> None:
    with pytest.raises(MisconfiguredError, match="HEARTBEAT_INTERVAL"):
        read(HEARTBEAT_INTERVAL=interval)


@pytest.mark.parametrize(
    ("variable", "longest", "too_long"),
    [("LEASE_DURATION", "10m", "11m"), ("KEEP_FINISHED_PARTITIONS_FOR", "36500d", "9999999d")],
)
def test_a_duration_that_leads_out_of_the_calendar_is_refused(variable: str, longest: str, too_long: str) -> None:
    read(**{variable: longest})
    with pytest.raises(MisconfiguredError, match=variable):
        read(**{variable: too_long})


def test_the_partition_table_is_in_the_watched_database_unless_another_is_named() -> None:
    assert read().partition_database_path == "projects/p/instances/i/databases/d"
    assert read(PARTITION_DATABASE="other").partition_database_path == "projects/p/instances/i/databases/other"
    assert read().source == "//spanner.googleapis.com/projects/p/instances/i/databases/d/changeStreams/s"


def test_times_keep_all_their_digits_and_the_end_is_not_before_the_start() -> None:
    start = "2022-05-01T09:00:00.123456789Z"
    assert read(START_TIMESTAMP=start).start_timestamp == parse_timestamp(start)
    with pytest.raises(MisconfiguredError, match="END_TIMESTAMP is before START_TIMESTAMP"):
        read(START_TIMESTAMP=start, END_TIMESTAMP="2022-05-01T09:00:00Z")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("us-east1", [("us-east1", "")]),
        ("us-east1:read_only, :read_write", [("us-east1", "read_only"), ("", "read_write")]),
    ],
)
def test_directed_reads_name_locations_and_types_of_replicas(text: str, found: list[tuple[str, str]]) -> None:
    assert read(DIRECTED_READS=text).directed_reads == text
    assert replicas(text) == found


@pytest.mark.parametrize(
    ("variables", "mistake"),
    [
        ({"DIRECTED_READS": "us-east1:readonly"}, "'us-east1:readonly' is not LOCATION"),
        ({"DIRECTED_READS": "us-east1,"}, "'' is not LOCATION"),
        ({"DIRECTED_READS": ",".join(["us-east1"] * 11)}, "Spanner takes 10 at most"),
        ({"SPANNER_ENDPOINT": "https://spanner.googleapis.com"}, "not host or host:port"),
        ({"SPANNER_ENDPOINT": "spanner.us.rep.googleapis.com", "SPANNER_EMULATOR_HOST": "localhost:1"}, "unset one"),
        ({"SPANNER_PRIORITY": "lowest"}, "not one of low, medium, high"),
        ({"DATABASE_ROLE": "a b", "PARTITION_DATABASE": "other"}, "DATABASE_ROLE='a b': not an identifier"),
        ({"DATABASE_ROLE": "mirror"}, "DATABASE_ROLE needs a PARTITION_DATABASE other than SPANNER_DATABASE"),
        ({"DATABASE_ROLE": "mirror", "PARTITION_DATABASE": "d"}, "a role cannot create tables"),
    ],
)
def test_what_is_reported_of_how_spanner_is_asked_has_to_be_right(variables: dict[str, str], mistake: str) -> None:
    with pytest.raises(MisconfiguredError, match=re.escape(mistake)):
        read(**variables)


def test_a_role_is_used_in_the_watched_database_alone() -> None:
    settings = read(
        DATABASE_ROLE="mirror",
        PARTITION_DATABASE="other",
        SPANNER_PRIORITY="low",
        DIRECTED_READS="us-east1:read_only",
        SPANNER_EMULATOR_HOST="localhost:1",
    )

    async def made() -> list[CallOptions]:
        channels = open_channels(settings)
        try:
            return [database.options for database in databases(settings, channels)]
        finally:
            await channels.close()

    watched, partitions = asyncio.run(made())
    assert (watched.role, partitions.role) == ("mirror", None)
    assert (watched.priority, partitions.priority) == ("low", "low")
    assert watched.directed_reads is not None
    (chosen,) = watched.directed_reads.include_replicas.replica_selections
    assert (chosen.location, chosen.type_.name) == ("us-east1", "READ_ONLY")


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "spanner.googleapis.com:443"),
        ({"SPANNER_ENDPOINT": "spanner.us.rep.googleapis.com"}, "spanner.us.rep.googleapis.com:443"),
        ({"SPANNER_ENDPOINT": "10.0.0.7:8443"}, "10.0.0.7:8443"),
    ],
)
def test_every_connection_goes_to_the_endpoint(
    variables: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def create_channel(host: str, **_options: object) -> grpc.aio.Channel:  # the real one needs credentials
        asked.append(host)
        return grpc.aio.insecure_channel(host)

    def create_channel_for_threads(host: str, **_options: object) -> grpc.Channel:
        asked.append(host)
        return grpc.insecure_channel("127.0.0.1:1")

    monkeypatch.setattr(SpannerGrpcAsyncIOTransport, "create_channel", create_channel)
    monkeypatch.setattr(SpannerGrpcTransport, "create_channel", create_channel_for_threads)

    async def connect() -> None:
        channels = open_channels(read(**variables))
        request = ExecuteSqlRequest.pb(ExecuteSqlRequest(session="s"))
        with pytest.raises(ServiceUnavailable):
            await anext(channels.portions("ExecuteStreamingSql", request, []))
        await channels.close()

    asyncio.run(connect())
    assert asked == [address, address]


@pytest.mark.parametrize("variable", ["CHANGE_STREAM", "PARTITION_TABLE"])
def test_a_name_that_goes_into_a_statement_is_an_identifier(variable: str) -> None:
    with pytest.raises(MisconfiguredError, match=variable):
        read(**{variable: "s; DROP TABLE t"})
