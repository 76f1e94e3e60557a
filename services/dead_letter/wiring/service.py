"""Joins the parts of the dead-letter service: subscription, store, HTTP API, health and metrics."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

from prometheus_client import CollectorRegistry

from services.dead_letter.adapters.inbox import TIMEOUT, PubsubInbox, open_inbox
from services.dead_letter.adapters.store.database import DeadLetterDatabase, open_database
from services.dead_letter.adapters.store.lock import collector_lock
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.app.collector import Collector
from services.dead_letter.app.metrics import CollectorMetrics
from services.dead_letter.ports import DeadLetterStore
from services.dead_letter.settings import Settings
from services.dead_letter.wiring.connections import pipeline_named
from services.dead_letter.wiring.serving import serving_api
from shared.pubsub.channels import open_channel, stoppable_channel
from shared.pubsub.leases import PubsubLeases, ack_deadline_of
from shared.pubsub.names import subscription_path, topic_path
from shared.pubsub.topology import check_dead_letter_subscription
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health, serving_health
from shared.runtime.metrics import TOPICS
from shared.runtime.retries import retrying
from shared.runtime.service import run_service
from shared.runtime.stop import Stop, unless_stopped


def service() -> int:
    """Run the service as the environment says; return the exit code."""
    return run_service("dead_letter", Settings, os.environ, serve)


def serve(settings: Settings, stop: Stop) -> None:
    """Collect, with health, metrics and the HTTP API served beside it, until asked to stop."""
    health, registry, clock = Health(settings.liveness), CollectorRegistry(), SystemClock()
    metrics = CollectorMetrics(registry, clock)
    with (
        serving_health(health, registry, stop, settings.host, settings.port, metrics.document),
        unless_stopped(stop),
        collector_lock(settings.database),
        opened(settings, health, stop) as (database, database_of_api),
    ):
        store = SqlDeadLetterStore(database)
        with (
            serving_api(settings, SqlDeadLetterStore(database_of_api), registry, stop),
            collected(settings, health, stop) as inbox,
        ):
            join(settings, store, health, stop)
            Collector(inbox, store, metrics, health, clock, settings.keep_dead_letters_for).run(stop)


@contextmanager
def opened(settings: Settings, health: Health, stop: Stop) -> Iterator[tuple[DeadLetterDatabase, DeadLetterDatabase]]:
    """Open the store for the block, made or brought up to date where needed; wait for one that is unavailable.

    It is opened for the collector and for the API: whatever requests do, the collector has connections of its own.
    """

    def open_it() -> DeadLetterDatabase:
        health.progressed()
        return open_database(settings.database)

    with closing(retrying(stop)(open_it)) as database, closing(retrying(stop)(open_it)) as database_of_api:
        yield database, database_of_api


def join(settings: Settings, store: DeadLetterStore, health: Health, stop: Stop) -> None:
    """Record the pipeline of the store before any dead letter is taken; MisconfiguredError if it has another."""
    mine = pipeline_named(settings, settings.dead_letter_subscription, settings.topic)
    for attempt in retrying(stop):
        with attempt:
            health.progressed()
            store.join(mine)


def check_start(settings: Settings, health: Health, stop: Stop) -> None:
    """Refuse a subscription that would lose dead letters, or that is none of theirs; Pub/Sub is waited for, alive."""
    topic = None if settings.topic is None else topic_path(settings.project, settings.topic)
    with stoppable_channel(settings.pubsub_emulator_host, stop) as channel:
        dead_letter_topic = check_dead_letter_subscription(
            channel,
            subscription_path(settings.project, settings.dead_letter_subscription),
            settings.keep_messages_for,
            stop,
            topic,
            progressed=health.progressed,
        )
    TOPICS.labels(topic or "", dead_letter_topic).set(1)


@contextmanager
def collected(settings: Settings, health: Health, stop: Stop) -> Iterator[PubsubInbox]:
    """Open the subscription for the block, if it is fit; in the end, what it holds is nacked."""
    check_start(settings, health, stop)
    subscription = subscription_path(settings.project, settings.dead_letter_subscription)
    with open_channel(settings.pubsub_emulator_host, settings.pull_bytes) as channel:

        def asked() -> timedelta:
            health.progressed()
            return ack_deadline_of(channel, subscription, TIMEOUT)

        ack_deadline = retrying(stop)(asked)
        # The collector tries again what fails, and counts as not ready meanwhile.
        leases = PubsubLeases(channel, subscription, ack_deadline, stop, budget=timedelta(0), timeout=TIMEOUT)
        with open_inbox(
            channel, subscription, leases, messages=settings.pull_messages, outstanding_bytes=settings.pull_bytes
        ) as inbox:
            yield inbox
