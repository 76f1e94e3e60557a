"""The topic shows how far any reader is, once that and a table are known."""

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from shared.contracts.change_batch import Header
from shared.contracts.timestamps import Nanoseconds
from shared.reading.publishing import ConfirmedPublishing
from shared.reading.topic_heartbeats import TopicHeartbeats
from tests.fakes.reader_metrics import AnyMetrics
from tests.unit.reading.toy_topic import HEADER, ToyPublisher, ToyTopic


async def test_the_low_watermark_is_published_each_minute_once_it_and_a_table_are_known() -> None:
    topic, headers, reached = ToyTopic(), list[Header](), [Nanoseconds(5_000)]
    heartbeats = TopicHeartbeats(
        ConfirmedPublishing(ToyPublisher(topic), AnyMetrics(), lambda _error: None),
        timedelta(minutes=1),
        lambda: headers[-1] if headers else None,
        lambda: reached[-1] if reached else None,
    )
    publishing = asyncio.create_task(heartbeats.keep_publishing())
    await asyncio.sleep(90)
    reached.clear()
    headers.append(HEADER)
    await asyncio.sleep(60)
    assert topic.headers == []
    for nanoseconds in (7_000, 9_000):
        reached.append(Nanoseconds(nanoseconds))
        await asyncio.sleep(60)
    publishing.cancel()
    assert topic.headers == [replace(HEADER, published_until=7), replace(HEADER, published_until=9)]
