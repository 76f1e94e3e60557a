import io
import json

import pytest

from services.cdc_consumer.wiring.commands import print_topology
from shared.pubsub.topology import PubsubTopology

TOPOLOGY = PubsubTopology(
    topic="projects/p/topics/changes",
    subscription="projects/p/subscriptions/consumer",
    dead_letter_topic="projects/p/topics/dead",
    dead_letter_subscription="projects/p/subscriptions/dead",
)


@pytest.mark.parametrize(("emulated", "grants"), [(False, 2), (True, 0)])
def test_as_json_set_up_names_what_there_is_and_the_commands_that_grant_what_is_missing(
    emulated: bool, grants: int
) -> None:
    out = io.StringIO()
    print_topology(TOPOLOGY, out, emulated=emulated, as_json=True)
    shown = json.loads(out.getvalue())
    still_to_grant = shown.pop("still_to_grant")
    assert shown == {
        name: getattr(TOPOLOGY, name)
        for name in ("topic", "subscription", "dead_letter_topic", "dead_letter_subscription")
    }
    assert [one.split()[:2] for one in still_to_grant] == [["gcloud", "pubsub"]] * grants


@pytest.mark.parametrize(("emulated", "lines"), [(False, 3), (True, 0)])
def test_as_text_set_up_prints_what_is_still_to_be_granted_where_an_emulator_needs_nothing(
    emulated: bool, lines: int
) -> None:
    out = io.StringIO()
    print_topology(TOPOLOGY, out, emulated=emulated, as_json=False)
    assert len(out.getvalue().splitlines()) == lines
