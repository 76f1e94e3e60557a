"""The command `doctor`: inspect everything the consumer needs, before it is started or beside it.

Every check runs, whatever the others find, and each finding comes with its fix. A consumer
that runs with the same settings is asked which tables it has trouble with. Exits 0 if there is no error, else 1.
It takes the consumer's own settings, leases no message and changes nothing but one empty table, made and dropped again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from pyspark import __version__

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.doctor.dataset_inspection import inspect_dataset, inspect_datasets_of_schemas
from services.cdc_consumer.adapters.spark.spark_session import check_java
from services.cdc_consumer.adapters.spark.spark_version import check_spark
from services.cdc_consumer.commands.status import Address, ask_consumer
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.advise import summary
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.pubsub.channels import open_channel
from shared.pubsub.inspection import Inspection
from shared.pubsub.names import subscription_path, topic_path
from shared.runtime.doctor import LOGIN, inspect_settings, inspect_tables_file, run_doctor
from shared.runtime.findings import Finding


def doctor(environ: Mapping[str, str], out: TextIO, *, as_json: bool) -> int:
    """Inspect everything, print what was found and return the exit code."""
    return run_doctor(_findings(environ), out, as_json=as_json)


def _findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from _check(
        "java", lambda: check_java(environ), "Java that Spark runs on", "apt-get install openjdk-17-jre-headless"
    )
    pyspark = f"PySpark {__version__}"
    yield from _check("Spark", lambda: check_spark(__version__), pyspark, "install PySpark 4.0 or newer, below 4.4")
    settings = yield from inspect_settings(
        Settings, environ, lambda it: f"project {it.project}, dataset {it.bigquery_dataset}"
    )
    if settings is None:
        return
    file = yield from inspect_tables_file(settings.tables_file, "none: every table is mirrored")
    yield from _with(lambda: open_channel(settings.pubsub_emulator_host), "Pub/Sub", lambda it: _pubsub(it, settings))
    yield from _with(
        lambda: open_storage_channel(settings.bigquery_storage_emulator_host),
        "write API",
        lambda it: _bigquery(it, settings, file),
    )
    yield from running_consumer(str(Address(host=settings.host, port=settings.port)))


def running_consumer(address: str) -> Iterator[Finding]:
    """Check which tables the consumer at an address has trouble with; nothing, where none runs there."""
    try:
        document = ask_consumer(address)
    except MisconfiguredError:
        return
    for table in document["tables"]:
        for trouble in table["troubles"]:
            yield Finding.warning(
                f"running consumer, table {table['table']}",
                f"{trouble['state']}: {trouble['why']}",
                "see docs/how-to/diagnose-a-table.md; the command `status` shows it until it is over",
            )


def _pubsub(channel: Any, settings: Settings) -> Iterator[Finding]:
    inspection, keep = Inspection(channel), settings.keep_messages_for
    subscription = subscription_path(settings.project, settings.subscription)
    dead_letters = topic_path(settings.project, settings.dead_letter_topic)
    yield from inspection.subscription(subscription, dead_letter_topic=dead_letters, keep_messages_for=keep)
    yield from inspection.rights(subscription, "consume", "get")
    yield from inspection.topic(dead_letters, keep)
    yield from inspection.rights(dead_letters, "publish")
    yield from inspection.forwarding(subscription, dead_letters)


def _bigquery(storage: Any, settings: Settings, file: TablesFile) -> Iterator[Finding]:
    try:
        client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
    except MisconfiguredError as error:
        yield Finding.error("BigQuery", str(error), LOGIN)
        return
    project, datasets = settings.dataset_project, sorted({settings.bigquery_dataset, *file.datasets})
    for dataset in datasets:
        yield from inspect_dataset(client, storage, project, dataset)
    yield from inspect_datasets_of_schemas(client, storage, project, file.dataset_templates, datasets)
    yield from summary(client, settings, file)


def _check(name: str, check: Callable[[], None], fine: str, fix: str) -> Iterator[Finding]:
    try:
        check()
    except MisconfiguredError as error:
        yield Finding.error(name, str(error), fix)
    else:
        yield Finding.ok(name, fine)


def _with(opened: Callable[[], Any], name: str, inspect: Callable[[Any], Iterator[Finding]]) -> Iterator[Finding]:
    """Inspect over a channel; that there are no credentials for one is a finding."""
    try:
        channel = opened()
    except MisconfiguredError as error:
        yield Finding.error(name, str(error), LOGIN)
        return
    with channel:
        yield from inspect(channel)
