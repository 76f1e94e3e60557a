"""`python -m services.cdc_consumer doctor`: look at everything the consumer needs, before it is started or beside it.

Every check runs, whatever the others find, and each finding comes with its cure. Exits 0 if there is no error, else 1.
It takes the consumer's own settings, leases no message and changes nothing but one empty table, made and dropped again.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO

from services.cdc_consumer.adapters.dataset_inspection import inspect_dataset, inspect_datasets_of_schemas
from services.cdc_consumer.adapters.storage_channel import open_storage_channel
from services.cdc_consumer.adapters.tables import open_client
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.spark_session import check_java
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.pubsub.channels import open_channel
from shared.pubsub.inspection import Inspection
from shared.pubsub.names import subscription_path, topic_path
from shared.runtime.findings import Finding, Level, exit_code, print_findings
from shared.runtime.settings import read_settings
from shared.runtime.tables_file import load_tables_file

_LOGIN: Final = "gcloud auth application-default login, or a service account of the workload's"


def doctor(arguments: Sequence[str], environ: Mapping[str, str], out: TextIO) -> int:
    """Look at everything, print what was found and return the exit code."""
    parser = argparse.ArgumentParser("python -m services.cdc_consumer doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    as_json = parser.parse_args(arguments).json
    findings = list(_looked_at(environ))
    print_findings(findings, as_json, out)
    return exit_code(findings)


def _looked_at(environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from _check(
        "java", lambda: check_java(environ), "Java that Spark runs on", "apt-get install openjdk-17-jre-headless"
    )
    try:
        settings = read_settings(Settings, environ)
    except MisconfiguredError as error:
        yield Finding(
            Level.ERROR, "settings", str(error), "set what is named; nothing else can be looked at without it"
        )
        return
    yield Finding(Level.OK, "settings", f"project {settings.project}, dataset {settings.bigquery_dataset}")
    file = TablesFile()
    try:
        file = load_tables_file(settings.tables_file)[1]
    except MisconfiguredError as error:
        yield Finding(Level.ERROR, "tables file", str(error), "mend the lines that are named")
    else:
        yield Finding(Level.OK, "tables file", str(settings.tables_file or "none: every table is mirrored"))
    yield from _with(lambda: open_channel(settings.pubsub_emulator_host), "Pub/Sub", lambda it: _pubsub(it, settings))
    yield from _with(
        lambda: open_storage_channel(settings.bigquery_storage_emulator_host),
        "write API",
        lambda it: _bigquery(it, settings, file),
    )


def _pubsub(channel: Any, settings: Settings) -> Iterator[Finding]:
    inspection, keep = Inspection(channel), settings.keep_messages_for
    subscription = subscription_path(settings.project, settings.subscription)
    letters = topic_path(settings.project, settings.dead_letter_topic)
    yield from inspection.subscription(subscription, dead_letter_topic=letters, keep_messages_for=keep)
    yield from inspection.rights(subscription, "consume", "get")
    yield from inspection.topic(letters, keep)
    yield from inspection.rights(letters, "publish")
    yield from inspection.forwarding(subscription, letters)


def _bigquery(storage: Any, settings: Settings, file: TablesFile) -> Iterator[Finding]:
    try:
        client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
    except MisconfiguredError as error:
        yield Finding(Level.ERROR, "BigQuery", str(error), _LOGIN)
        return
    project, datasets = settings.dataset_project, sorted({settings.bigquery_dataset, *file.datasets})
    for dataset in datasets:
        yield from inspect_dataset(client, storage, project, dataset)
    named = {section.dataset or "" for section in (file.defaults, *(section for _name, section in file.tables))}
    templates = {one for one in named if "{" in one}
    yield from inspect_datasets_of_schemas(client, storage, project, templates, datasets)


def _check(name: str, check: Callable[[], None], fine: str, cure: str) -> Iterator[Finding]:
    try:
        check()
    except MisconfiguredError as error:
        yield Finding(Level.ERROR, name, str(error), cure)
    else:
        yield Finding(Level.OK, name, fine)


def _with(opened: Callable[[], Any], name: str, look: Callable[[Any], Iterator[Finding]]) -> Iterator[Finding]:
    """Look over a channel; that there are no credentials for one is a finding."""
    try:
        channel = opened()
    except MisconfiguredError as error:
        yield Finding(Level.ERROR, name, str(error), _LOGIN)
        return
    with channel:
        yield from look(channel)
