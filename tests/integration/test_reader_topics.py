"""The topic that the readers of a stream publish to, of either source: another is refused until it is changed."""

import json
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.pubsub.names import published_to, short_name
from shared.pubsub.topology import create_topology
from shared.runtime.service import MISCONFIGURED
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology, pull
from tests.integration.readers import Readers, refusal, stop
from tests.worlds.spanner_pipeline import DDL

pytestmark = pytest.mark.integration


@pytest.fixture(params=["spanner", "bigtable"])
def pipeline(request: pytest.FixtureRequest) -> Readers:
    """Return a pipeline of each source, with a topic of its own."""
    if request.param == "spanner":
        database = request.getfixturevalue("database")
        watched: tuple[Any, ...] = database(*DDL), database()
    else:
        watched = (request.getfixturevalue("front").table("f"),)
    made: Readers = request.getfixturevalue(f"{request.param}_pipeline")(*watched)
    return made


def test_a_reader_with_another_topic_is_refused_at_its_start_and_with_the_command_all_go_on_there_where_they_were(
    pipeline: Readers, channel: grpc.Channel
) -> None:
    ours, other = pipeline.topology, a_topology(channel)
    elsewhere = {"TOPIC": short_name(other.topic), "DEAD_LETTER_TOPIC": short_name(other.dead_letter_topic)}
    code, output = pipeline.run_command("topic", **elsewhere)
    assert (code, "start the reader" in output) == (MISCONFIGURED, True)

    reader = pipeline.start()
    refused = pipeline.launch(**elsewhere)
    refusal(refused)
    (event,) = events(refused, "service_misconfigured")
    project = pipeline.environment()["GOOGLE_CLOUD_PROJECT"]
    theirs, before = (published_to(project, one.topic, pipeline.pubsub) for one in (other, ours))
    assert all(topic in event["error"] for topic in (theirs, before))
    code, output = pipeline.run_command("topic", **elsewhere)
    assert (code, "stop all of them" in output) == (MISCONFIGURED, True)
    assert pull(channel, other.subscription) == []
    pipeline.write()
    pipeline.wait_for_all()
    stop(reader)
    reader = pipeline.start()  # its own topic is as good as ever
    pipeline.write()
    pipeline.wait_for_all()
    stop(reader)

    code, output = pipeline.run_command("topic", "--json", **elsewhere)
    assert code == 0, output
    assert json.loads(output) == {"topic": theirs, "before": before}
    moved = pipeline.start(**elsewhere)
    pipeline.topology = other
    pipeline.write()
    pipeline.wait_for_all()
    assert events(moved, "resumed")
    assert not events(moved, "first_start")


def test_a_resumed_start_without_a_subscription_requests_a_resync_before_it_is_refused(
    pipeline: Readers, channel: grpc.Channel
) -> None:
    ours, other = pipeline.topology, a_topology(channel)
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    for each in (ours, other):
        client.delete_subscription(request={"subscription": each.subscription}, timeout=10)

    def refused(topic: str) -> str:
        return pipeline.refused(TOPIC=short_name(topic))

    assert "it has no subscription" in refused(ours.topic)  # a first start: nothing was read into it
    create_topology(channel, ours)
    stop(pipeline.start())
    client.delete_subscription(request={"subscription": ours.subscription}, timeout=10)
    assert "publish to" in refused(other.topic)  # that one has lost nothing of this stream
    assert pipeline.status()[1]["pending_resync"] == []
    assert "it has no subscription" in refused(ours.topic)
    (request,) = pipeline.status()[1]["pending_resync"]
    assert [why["kind"].removeprefix("table_") for why in request["why"]] == ["changes_lost_by_the_topic"]
    create_topology(channel, ours)
    pipeline.start(SNAPSHOT="never")
    assert pipeline.status()[1]["pending_resync"] == [request]
