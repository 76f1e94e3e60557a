"""The settings of a process that serves rows of Spanner."""

import os
from collections.abc import Mapping

from deploy.local.platform.source import SpannerDatabase
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology


def environment(source: SpannerDatabase, stream: str, topology: PubsubTopology, pubsub: str) -> Mapping[str, str]:
    """Return the settings of a reader of a change stream."""
    return {
        **os.environ,
        "GOOGLE_CLOUD_PROJECT": source.instance.project,
        "SPANNER_INSTANCE": source.instance.instance,
        "SPANNER_DATABASE": source.name,
        "CHANGE_STREAM": stream,
        "TOPIC": short_name(topology.topic),
        "DEAD_LETTER_TOPIC": short_name(topology.dead_letter_topic),
        "SPANNER_EMULATOR_HOST": source.instance.address,
        "PUBSUB_EMULATOR_HOST": pubsub,
    }
