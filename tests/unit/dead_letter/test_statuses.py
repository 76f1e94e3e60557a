"""The console reads what the other services write at `/status`: each document is made by the service's own code."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.core.schema.resync import (
    BigtableResyncCause,
    BigtableResyncKind,
    BigtableResyncRequest,
)
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import Microseconds
from services.cdc_consumer.core.stream.counts import Counts, TableNote
from services.cdc_consumer.ports import Mirror
from services.dead_letter.core.attention import Launcher, needs_attention
from services.dead_letter.core.statuses import StatusAnswer, WatchedService, polled, status_of
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.pauses import Pause, Pauses
from services.spanner_reader.core.schema.shapes import SpannerResyncCause, SpannerResyncKind, SpannerResyncRequest
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.backlog import SubscriptionBacklog
from tests.unit.cdc_consumer.status_world import LATEST, MICROS, WAITS, World
from tests.unit.dead_letter.dead_letters import NOW

SPANNER, BIGTABLE = "//spanner.googleapis.com/s", "//bigtable.googleapis.com/b"


class _Clock:
    def now(self) -> Microseconds:
        return Microseconds(NOW // 1000)


def a_backlog(subscription: str, *, days: int) -> SubscriptionBacklog:
    return SubscriptionBacklog(
        name=f"projects/p/subscriptions/{subscription}",
        store="subscription",
        retention=timedelta(days=7),
        oldest=timedelta(days=days),
        messages=3,
    )


def spanner_reader() -> Mapping[str, object]:
    metrics, pause = SpannerReaderMetrics(CollectorRegistry(), SPANNER), Pause(NOW, NOW)
    cause = SpannerResyncCause("airports", SpannerResyncKind.COLUMN_DEFAULTED, NOW, NOW, ("city",))
    metrics.set_pending_resync([SpannerResyncRequest("airports", (cause,))], "`")
    metrics.paused(Pauses(NOW, stream=pause, tables={"planes": pause}))
    metrics.surveyed({"RUNNING": 3}, NOW, Nanoseconds(NOW + 1_000_000_000))
    metrics.backlog.show([a_backlog("consumer", days=4), a_backlog("letters", days=1)])
    return metrics.document()


def bigtable_reader() -> Mapping[str, object]:
    metrics, now = BigtableReaderMetrics(CollectorRegistry(), BIGTABLE, _Clock()), _Clock().now()
    cause = BigtableResyncCause(kind=BigtableResyncKind.FAMILIES_DROPPED, found_at=now, run=0)
    request = BigtableResyncRequest("traffic", (cause,))
    survey = BigtablePartitionSurvey((), {}, frozenset(), now, None, request)
    metrics.surveyed(survey, now, timedelta(minutes=5))
    metrics.backlog.show([a_backlog("consumer", days=4)])
    return metrics.document()


def consumer() -> Mapping[str, object]:
    """Return the document of a consumer with a table of each trouble."""
    world = World()
    world.inspect(Mirror("gone", MICROS))
    world.inspect(Mirror("recreated", MICROS, "table_made_anew"), Mirror("airports", MICROS, complete_since=MICROS))
    notes = {"planes": WAITS, "crew": TableNote(unfit="another key"), "airports": TableNote(latest=LATEST)}
    heartbeats = {SPANNER: MICROS - 1_000_000, BIGTABLE: MICROS - 3600 * 1_000_000}
    world.take(Counts(messages=3, changes=5, tables=notes, heartbeats=heartbeats))
    return world.status.document(ready=True, alive=True)


def watched(documents: Mapping[str, Mapping[str, object]], at: Nanoseconds) -> list[WatchedService]:
    """Return services that were polled at a time, each with its document."""
    return [
        polled(
            WatchedService(name=name, address="http://x:1"),
            StatusAnswer(ready=True, obstacles="", status=msgspec.json.encode(document)),
            at,
        )
        for name, document in documents.items()
    ]


DOCUMENTS = {"spanner_reader": spanner_reader, "bigtable_reader": bigtable_reader, "consumer": consumer}


def unwritten(read: Any, document: Any, at: str) -> Iterator[str]:
    """Return the members that the console reads and a document does not have, and lists in which nothing is."""
    match read:
        case msgspec.Struct():
            for name in read.__struct_fields__:
                if name in document:
                    yield from unwritten(getattr(read, name), document[name], f"{at}.{name}")
                else:
                    yield f"{at}.{name}"
        case []:
            yield f"{at} is empty"
        case list():
            for one, written in zip(read, document, strict=True):
                yield from unwritten(one, written, f"{at}[]")
        case _:
            pass


@pytest.mark.parametrize("service", DOCUMENTS)
def test_every_member_that_the_console_reads_is_in_the_document_of_the_service(service: str) -> None:
    data = msgspec.json.encode(DOCUMENTS[service]())
    missing = set(unwritten(status_of(data), msgspec.json.decode(data), service))
    assert missing - {"consumer.tables[].troubles is empty"} == set()


def test_the_console_knows_every_state_that_the_services_report() -> None:
    services = watched({name: document() for name, document in DOCUMENTS.items()}, Nanoseconds(NOW))
    items = needs_attention(services, None, Launcher())
    assert {(item.where, item.what) for item in items} == {
        ("consumer", "table recreated is pending resync"),
        ("consumer", "table crew is refused"),
        ("consumer", "table gone is dropped"),
        ("consumer", "table planes is deferred"),
        ("spanner_reader", "is paused"),
        ("spanner_reader", "table airports is pending resync"),
        ("spanner_reader", "table planes is paused"),
        ("bigtable_reader", "table traffic is pending resync"),
        ("bigtable_reader", "has a low watermark that stands still"),
        ("subscription consumer", "keeps its oldest message for 72.0 more hours"),
    }
    (kept,) = (item.command for item in items if item.where == "subscription consumer")
    assert kept == (
        "gcloud pubsub subscriptions update --message-retention-duration=31d projects/p/subscriptions/consumer"
    )
    assert [item.what for item in items if "diagnose-a-table" in item.todo] == []


def test_a_source_without_heartbeats_needs_attention_though_no_reader_of_it_is_polled() -> None:
    def items(document: Mapping[str, object], *others: str) -> list[tuple[str, str | None]]:
        documents = {"consumer": document} | {other: DOCUMENTS[other]() for other in others}
        found = needs_attention(watched(documents, Nanoseconds(MICROS * 1000)), None, Launcher())
        return [(item.what, item.command) for item in found if "heartbeat" in item.what]

    document = consumer()
    silent = (f"no heartbeat of {BIGTABLE} for 60 minutes", "./millrace bigtable-reader status")
    assert items(document) == [silent]
    assert items(document, "bigtable_reader") == [silent]
    assert items(document, "spanner_reader") == [], "it is paused"
    assert items({**document, "sources": {BIGTABLE: "not a time", SPANNER: None}}) == []
