"""A stop at the start, against a server that takes every call and answers none: what is under way is cancelled."""

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.service import read
from services.bigtable_reader.wiring.stores import MicrosecondClock
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.integration.silent_server import stopped_before_a_silent_server

pytestmark = pytest.mark.integration


def test_what_bigtable_does_not_answer_at_the_start_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        needed = {
            "GOOGLE_CLOUD_PROJECT": "p",
            "BIGTABLE_INSTANCE": "i",
            "BIGTABLE_TABLE": "weather",
            "TOPIC": "changes",
            "DEAD_LETTER_TOPIC": "dead",
            "BIGTABLE_EMULATOR_HOST": address,
        }
        metrics = BigtableReaderMetrics(CollectorRegistry(), "s", MicrosecondClock())
        subscriptions = TopicSubscriptions(address, [], timedelta(days=1))
        await read(read_settings(Settings, needed), stop, Health(), metrics, subscriptions)

    stopped_before_a_silent_server(scenario)
