"""Pipelines for what is tested here: one without a reader, and one from a source of each kind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import child_environment
from deploy.local.platform.source import SpannerInstance
from tests.e2e.rig import Rig
from tests.e2e.standing import Standing
from tests.exhaustive.deployment import Deployment
from tests.integration.bigtable_front import Front
from tests.worlds.consumer import WITHOUT_SPARK, World, a_world


@pytest.fixture
def world(pubsub_emulator: str, bigquery_stand_in: tuple[str, str], new_processes: Processes) -> Iterator[World]:
    """Return a pipeline without a reader; its consumer is still to be started."""
    with a_world(pubsub_emulator, bigquery_stand_in, new_processes) as world:
        yield world


@pytest.fixture
def consumer_module() -> str:
    """Return what runs as the consumer of `deployment`: what a module needs Spark for, it says."""
    return WITHOUT_SPARK


@pytest.fixture
def deployment(
    consumer_module: str,
    new_processes: Processes,
    tmp_path: Path,
    spanner_instance: SpannerInstance,
    pubsub_emulator: str,
    bigquery_stand_in: tuple[str, str],
    bigtable_front: str,
) -> Iterator[Deployment]:
    """Return a pipeline from a source of each kind, in topics and a dataset of its own; no service runs yet."""
    standing = Standing(new_processes, pubsub_emulator, bigquery_stand_in)
    with Processes(tmp_path / "services", child_environment(os.environ)) as processes, Front(bigtable_front) as front:
        yield Deployment(Rig(standing, spanner_instance, processes), front.table("f"), processes, consumer_module)
        processes.end_all()
    standing.close()
