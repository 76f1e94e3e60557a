"""The command `doctor`: inspect everything the service and its replays need, before or beside it.

Every check runs, whatever the others find, and each finding comes with its fix. Exits 0 if there is no error, else 1.
It takes the service's own settings, leases no message and changes nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final, TextIO

from services.dead_letter.adapters.mirrors import check_dataset
from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.disk import mounts, short_lived
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.pipeline import joined
from services.dead_letter.settings import Settings
from services.dead_letter.wiring.connections import pipeline_named
from services.dead_letter.wiring.serving import known_proxy, known_tokens
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.pubsub.channels import open_channel
from shared.pubsub.inspection import Inspection
from shared.pubsub.names import short_name, subscription_path, topic_path
from shared.pubsub.topology import check_dead_letter_subscription
from shared.runtime.doctor import LOGIN, inspect_settings, inspect_tables_file, run_doctor
from shared.runtime.findings import Finding

_AS_IT_SAYS: Final = "as the message says"


def doctor(environ: Mapping[str, str], out: TextIO, *, as_json: bool) -> int:
    """Inspect everything, print what was found and return the exit code."""
    return run_doctor(_findings(environ), out, as_json=as_json)


def _findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    settings = yield from inspect_settings(
        Settings, environ, lambda it: f"project {it.project}, subscription {it.dead_letter_subscription}"
    )
    if settings is None:
        return
    yield _store(settings)
    if place := short_lived(settings.database, mounts()):
        fix = "mount a volume for it, or name PostgreSQL in DATABASE"
        yield Finding.warning("store: disk", f"it is on {place}, and all dead letters with it", fix)
    file = yield from inspect_tables_file(settings.tables_file, "none: every table is mirrored")
    yield from _pubsub(settings)
    yield from _mirrors(settings, file)
    if settings.api_port is not None:
        yield _api(settings)


def _api(settings: Settings) -> Finding:
    try:
        known_tokens(settings)
        known_proxy(settings)
    except MisconfiguredError as error:
        return Finding.error("HTTP API", str(error), _AS_IT_SAYS)
    return Finding.ok("HTTP API", "no file of tokens or of the proxy's keys is unreadable")


def _store(settings: Settings) -> Finding:
    try:
        with closing(open_database(settings.database, make=False)) as database:
            known = SqlDeadLetterStore(database).pipeline()
    except MisconfiguredError as error:
        fix = "start the service, which makes what is missing, or fix DATABASE"
        return Finding.error("store", str(error), fix)
    except TransientError as error:
        return Finding.error("store", str(error), "see that it runs and can be reached: DATABASE")
    try:
        joined(known, pipeline_named(settings, settings.dead_letter_subscription, settings.topic))
    except MisconfiguredError as error:
        return Finding.error("store", str(error), _AS_IT_SAYS)
    return Finding.ok("store", "it can be read, is of this version, and holds no other pipeline's dead letters")


def _pubsub(settings: Settings) -> Iterator[Finding]:
    try:
        opened = open_channel(settings.pubsub_emulator_host)
    except MisconfiguredError as error:
        yield Finding.error("Pub/Sub", str(error), LOGIN)
        return
    keep = settings.keep_messages_for
    subscription = subscription_path(settings.project, settings.dead_letter_subscription)
    topic = None if settings.topic is None else topic_path(settings.project, settings.topic)
    with opened as channel:
        inspection, what = Inspection(channel), f"subscription {short_name(subscription)}"
        try:
            check_dead_letter_subscription(channel, subscription, keep, None, topic)
        except MisconfiguredError as error:
            yield Finding.error(what, str(error), _AS_IT_SAYS)
        except TransientError as error:
            yield Finding.error(what, str(error), "see that Pub/Sub can be reached from here")
        else:
            yield Finding.ok(what, "it takes every dead letter and keeps it")
        yield from inspection.rights(subscription, "consume", "get")
        if topic is None:
            detail = "not set: dead letters are collected, and none can be replayed"
            yield Finding.warning("topic", detail, "set TOPIC to the topic of the change batches")
            return
        yield from inspection.topic(topic, keep)
        yield from inspection.rights(topic, "publish")


def _mirrors(settings: Settings, file: TablesFile) -> Iterator[Finding]:
    if settings.bigquery_dataset is None:
        detail = "not set: a replay sends also what the mirror has something newer of, which loses by its sequence"
        yield Finding.ok("BIGQUERY_DATASET", detail)
        return
    project = settings.dataset_project or settings.project
    try:
        client = open_client(project, settings.bigquery_emulator_host)
    except MisconfiguredError as error:
        yield Finding.error("BigQuery", str(error), LOGIN)
        return
    for dataset in sorted({settings.bigquery_dataset, *file.datasets}):
        what = f"dataset {dataset}"
        try:
            check_dataset(client, project, dataset)
        except (MisconfiguredError, TransientError) as error:
            yield Finding.error(what, str(error), _AS_IT_SAYS)
        else:
            yield Finding.ok(what, "its tables can be listed")
