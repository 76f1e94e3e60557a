"""A pipeline for each test: a fresh database, its own topics and dataset, on the session's emulators."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.processes import Processes
from deploy.local.services import Pipeline, child_environment
from deploy.local.source import SpannerInstance
from tests.conftest import PROJECT
from tests.e2e.rig import POSTGRESQL_SCHEMA, SCHEMA, NewRig, Rig, pubsub_channel

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test below this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Return the processes of one test; what it starts gets nothing of the shell's settings."""
    with Processes(tmp_path / "processes", child_environment(os.environ)) as processes:
        yield processes


@contextmanager
def rigs(processes: Processes, pubsub_emulator: str, bigquery_stand_in: tuple[str, str]) -> Iterator[NewRig]:
    """Yield a function that makes a pipeline on a Spanner instance, and on the session's stand-in unless told."""
    made: list[Rig] = []
    channel = pubsub_channel(pubsub_emulator)

    def make(
        instance: SpannerInstance, bigquery: tuple[str, str] = bigquery_stand_in, *, postgresql: bool = False
    ) -> Rig:
        rest, write_api = bigquery
        database = instance.create_database(POSTGRESQL_SCHEMA if postgresql else SCHEMA, postgresql=postgresql)
        partitions = instance.create_database([], postgresql=postgresql)
        pipeline = Pipeline(
            spanner=instance.address,
            pubsub=pubsub_emulator,
            bigquery_rest=rest,
            bigquery_grpc=write_api,
            project=PROJECT,
            instance=instance.instance,
            database=database.name,
            partition_database=partitions.name,
            change_stream="everything",
            name=f"e2e-{next(_numbers)}",
        )
        rig = Rig(pipeline, database, partitions, processes, channel)
        made.append(rig)
        return rig

    yield make
    processes.end_all()
    for rig in made:
        rig.close()
    channel.close()


@pytest.fixture
def new_rig(processes: Processes, pubsub_emulator: str, bigquery_stand_in: tuple[str, str]) -> Iterator[NewRig]:
    """Return a function that makes a pipeline."""
    with rigs(processes, pubsub_emulator, bigquery_stand_in) as make:
        yield make


@pytest.fixture(scope="module")
def lasting_rig(
    tmp_path_factory: pytest.TempPathFactory,
    spanner_instance: SpannerInstance,
    pubsub_emulator: str,
    bigquery_stand_in: tuple[str, str],
) -> Iterator[Rig]:
    """Return a pipeline for all tests of a module; what runs on it goes on from one to the next."""
    with (
        Processes(tmp_path_factory.mktemp("processes"), child_environment(os.environ)) as processes,
        rigs(processes, pubsub_emulator, bigquery_stand_in) as make,
    ):
        rig = make(spanner_instance)
        yield rig
        processes.end_all()
        rig.drop()


@pytest.fixture
def rig(new_rig: NewRig, spanner_instance: SpannerInstance, processes: Processes) -> Iterator[Rig]:
    """Return a pipeline on the session's Spanner emulator, whose partitions stay as they are."""
    rig = new_rig(spanner_instance)
    yield rig
    processes.end_all()
    rig.drop()
