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


@pytest.mark.parametrize(("emulated", "grants", "lines"), [(False, 2, 3), (True, 0, 0)])
def test_set_up_names_what_there_is_and_the_commands_that_grant_what_is_missing_of_which_an_emulator_needs_none(
    emulated: bool, grants: int, lines: int
) -> None:
    document, text = io.StringIO(), io.StringIO()
    print_topology(TOPOLOGY, document, emulated=emulated, as_json=True)
    print_topology(TOPOLOGY, text, emulated=emulated, as_json=False)

    shown = json.loads(document.getvalue())
    still_to_grant = shown.pop("still_to_grant")
    assert shown == {
        name: getattr(TOPOLOGY, name)
        for name in ("topic", "subscription", "dead_letter_topic", "dead_letter_subscription")
    }
    assert [one.split()[:2] for one in still_to_grant] == [["gcloud", "pubsub"]] * grants
    assert len(text.getvalue().splitlines()) == lines
