"""The demo's databases, tables, topics and dataset on emulators and stand-ins that run somewhere: made, or found."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import grpc
from google.api_core.exceptions import AlreadyExists

from deploy.local.demo.schema import FLIGHTS, WEATHER, DemoDatabase
from deploy.local.demo.wide_tables import WIDE_TABLES
from deploy.local.demo.workload import Workload
from deploy.local.demo.workloads import wide_workload, workloads
from deploy.local.platform.bigtable import BigtableInstance
from deploy.local.platform.services import BigtablePipeline, Flow, Pipeline
from deploy.local.platform.source import SpannerDatabase, SpannerInstance
from deploy.local.platform.target import BigQueryDataset
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import hidden, setting

PROJECT: Final = "millrace-local"
INSTANCE: Final = "local"
CLUSTER: Final = f"{INSTANCE}-c1"
APP_PROFILE: Final = "millrace"
DATABASES: Final = (FLIGHTS, WEATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the emulators and stand-ins are, each as ``host:port``; nothing for a source that is not used."""

    pubsub: str = setting("of the Pub/Sub emulator", env="PUBSUB_EMULATOR_HOST")
    bigquery_rest: str = setting("of the BigQuery stand-in's REST side", env="BIGQUERY_EMULATOR_HOST")
    bigquery_grpc: str = setting("of its write API (gRPC)", env="BIGQUERY_STORAGE_EMULATOR_HOST")
    spanner: str = setting("of the Spanner emulator", env="SPANNER_EMULATOR_HOST", default="")
    bigtable: str = setting("of the front before the Bigtable emulator", env="BIGTABLE_EMULATOR_HOST", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSettings:
    """The settings of `create`, which makes everything, beside the addresses."""

    tables_file: Path = setting("where the services' tables file is written")
    api_token_file: Path | None = setting(
        "where the token of the dead-letter service's API is written; one that is there stays", default=None
    )
    api_token: str | None = setting("that token; without it a random one is made", default=None, shown=hidden)
    before: int = setting("flights that are in Spanner before its change stream is", default=0, least=0)
    emulators_timeout: timedelta = setting("how long the emulators may take to answer", default=timedelta(minutes=2))


@dataclass(frozen=True)
class Platform:
    """Everything that services need to find, and the clients that read it."""

    flow: Flow
    dataset: BigQueryDataset
    databases: Sequence[tuple[SpannerDatabase, Pipeline]]
    wide_tables: Sequence[tuple[BigtableInstance, BigtablePipeline]]


def write_api_token(settings: CreateSettings) -> None:
    """Write the token that the dead-letter service's API asks for, unless there is one already."""
    file = settings.api_token_file
    if file is not None and (settings.api_token is not None or not _has_text(file)):
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text((settings.api_token or secrets.token_urlsafe(32)) + "\n")
        new.replace(file)


def _has_text(file: Path) -> bool:
    return file.exists() and file.read_text().strip() != ""


def tables_file() -> str:
    """Return the services' tables file for the demo (TOML)."""
    histories = [f'[tables."{table}"]\nmode = "both"\n' for demo in DATABASES for table in demo.histories]
    return "\n".join([*histories, *(table.options for table in WIDE_TABLES)])


@contextmanager
def platform_at(addresses: Addresses, tables: Path, *, create: bool, before: int = 0) -> Iterator[Platform]:
    """Make everything, or find what was made, and hold the clients open for the block.

    Tables in Spanner are filled with so many flights, and what belongs to them, ``before`` their change stream is
    made, and of those in Bigtable the one that counts flights. What is there already is left as it is, so that making
    it again changes nothing.
    """
    shared: dict[str, Any] = {
        "pubsub": addresses.pubsub,
        "bigquery_rest": addresses.bigquery_rest,
        "bigquery_grpc": addresses.bigquery_grpc,
        "project": PROJECT,
        "tables_file": str(tables),
    }
    with ExitStack() as stack:
        flow = Flow(**shared)
        dataset = BigQueryDataset(addresses.bigquery_rest, PROJECT, flow.dataset)
        stack.callback(dataset.close)
        if create:
            flow.create_topics()
            dataset.create()
        filling = workloads(0, before=before) if create else None
        databases = _databases(stack, addresses.spanner, shared, filling) if addresses.spanner else []
        flights = before if create else None
        wide = _wide_tables(stack, addresses.bigtable, shared, flights) if addresses.bigtable else []
        yield Platform(flow, dataset, databases, wide)


def wait_for(addresses: Addresses, timeout: timedelta) -> None:
    """Wait until every address is served, for not every image has a health check; MisconfiguredError if one is not."""
    deadline = time.monotonic() + timeout.total_seconds()
    served = [addresses.pubsub, addresses.bigquery_grpc, addresses.spanner, addresses.bigtable]
    for address in filter(None, served):
        with grpc.insecure_channel(address) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=max(1.0, deadline - time.monotonic()))
            except grpc.FutureTimeoutError:
                raise MisconfiguredError(
                    "emulator-does-not-answer", f"nothing answers at {address}: is its emulator up?"
                ) from None


def _databases(
    stack: ExitStack, address: str, shared: Mapping[str, Any], filling: Sequence[Workload] | None
) -> list[tuple[SpannerDatabase, Pipeline]]:
    """Make the databases of the demo, and for each one of the same dialect for its reader's partition table.

    ``filling`` has the rows that they are filled with; None: they are there.
    """
    instance = SpannerInstance.connect(address, PROJECT, INSTANCE)
    stack.callback(instance.close)
    if filling is not None:
        with suppress(AlreadyExists):
            instance.make()
        for workload in filling:
            _make(instance, workload)
    made = []
    for demo in DATABASES:
        partitions = _partitions_of(demo)
        pipeline = Pipeline(
            spanner=address,
            instance=INSTANCE,
            database=demo.name,
            partition_database=partitions,
            change_stream=demo.change_stream,
            **shared,
        )
        made.append((instance.database(demo.name, postgresql=demo.postgresql), pipeline))
    return made


def _make(instance: SpannerInstance, workload: Workload) -> None:
    """Make a database, fill its tables, and only then let its change stream begin."""
    demo = workload.demo
    for name, statements in ((_partitions_of(demo), ()), (demo.name, demo.tables)):
        with suppress(AlreadyExists):
            instance.create_database(statements, name, postgresql=demo.postgresql)
    database = instance.database(demo.name, postgresql=demo.postgresql)
    made = "SELECT change_stream_name FROM information_schema.change_streams"
    if demo.change_stream not in [row["change_stream_name"] for row in database.query(made)]:
        for transaction in workload.before():
            with suppress(AlreadyExists):
                database.commit(transaction.writes)
        database.alter(demo.watched)


def _partitions_of(demo: DemoDatabase) -> str:
    return f"{demo.name}-millrace"


def _wide_tables(
    stack: ExitStack, address: str, shared: Mapping[str, Any], before: int | None
) -> list[tuple[BigtableInstance, BigtablePipeline]]:
    """Make the tables of the demo, and the app profile by which their readers read them.

    ``before``: how many flights they are filled for; None: they are there.
    """
    instance = BigtableInstance(address, PROJECT, INSTANCE)
    stack.callback(instance.close)
    if before is not None:
        with suppress(AlreadyExists):
            instance.create_profile(APP_PROFILE, CLUSTER)
        for demo in WIDE_TABLES:
            with suppress(AlreadyExists):
                instance.create_table(demo.table)
                for call in wide_workload(0, before=before).before():
                    if call.table == demo.name:
                        instance.apply(call)
    made = []
    for demo in WIDE_TABLES:
        pipeline = BigtablePipeline(
            bigtable=address, instance=INSTANCE, table=demo.name, app_profile=APP_PROFILE, **shared
        )
        made.append((instance, pipeline))
    return made
