"""The baseline of a replay: what one writes without a store of letters, with the generated client as documented.

Pull from the dead-letter subscription, publish each message to the topic under its ordering key with
google.cloud.pubsub_v1.PublisherClient and its own batching, await every publish, then acknowledge. Nobody is asked
first, nothing is written down, and a second run sends whatever has come meanwhile. Run as
``python -m tests.benchmarks.baseline_replay JSON``, with the emulator's address in the environment.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.cloud.pubsub_v1.types import PublisherOptions

from shared.contracts.dead_letter import PREFIX

_AT_ONCE = 1_000


def main(told: Mapping[str, Any]) -> None:
    """Send all letters back; say how many, and how long that took."""
    began = time.monotonic()
    nobody: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    subscriber = SubscriberClient(credentials=nobody)
    publisher = PublisherClient(publisher_options=PublisherOptions(enable_message_ordering=True), credentials=nobody)
    sent = 0
    while sent < told["dead_letters"]:
        received = subscriber.pull(subscription=told["subscription"], max_messages=_AT_ONCE).received_messages
        futures = []
        for one in received:
            attributes = dict(one.message.attributes)
            ordering_key = attributes.get(f"{PREFIX}ordering_key", "")
            kept = {name: value for name, value in attributes.items() if not name.startswith(PREFIX)}
            futures.append(publisher.publish(told["topic"], one.message.data, ordering_key, **kept))
        for future in futures:
            future.result()
        if received:
            subscriber.acknowledge(subscription=told["subscription"], ack_ids=[one.ack_id for one in received])
        sent += len(received)
    sys.stdout.write(json.dumps({"seconds": time.monotonic() - began, "dead_letters": sent}) + "\n")
    publisher.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
