"""The standing pipeline, and for each test a fresh database and tables of its own in it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import child_environment
from deploy.local.platform.source import SpannerInstance
from tests.e2e.rig import Rig
from tests.e2e.standing import Standing
from tests.worlds.consumer import WITHOUT_SPARK


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


@pytest.fixture(scope="session")
def one_standing(
    tmp_path_factory: pytest.TempPathFactory, pubsub_emulator: str, bigquery_stand_in: tuple[str, str]
) -> Iterator[Standing]:
    """Return the pipeline that stands for the whole session."""
    with Processes(tmp_path_factory.mktemp("standing"), child_environment(os.environ)) as processes:
        standing = Standing(processes, pubsub_emulator, bigquery_stand_in)
        yield standing
        standing.close()


@pytest.fixture(scope="module")
def standing(request: pytest.FixtureRequest, one_standing: Standing) -> Iterator[Standing]:
    """Return the standing pipeline; a module that fails leaves nothing of it to the next."""
    failed = request.session.testsfailed
    yield one_standing
    if request.session.testsfailed > failed:
        one_standing.renew()


@pytest.fixture(scope="module")
def lasting_rig(
    tmp_path_factory: pytest.TempPathFactory, spanner_instance: SpannerInstance, standing: Standing
) -> Iterator[Rig]:
    """Return a rig for all tests of a module; what runs on it goes on from one to the next."""
    with Processes(tmp_path_factory.mktemp("processes"), child_environment(os.environ)) as processes:
        rig = Rig(standing, spanner_instance, processes)
        yield rig
        processes.end_all()
        rig.drop()


@pytest.fixture
def rig_without_spark(
    pubsub_emulator: str,
    bigquery_stand_in: tuple[str, str],
    spanner_instance: SpannerInstance,
    processes: Processes,
    tmp_path: Path,
) -> Iterator[Rig]:
    """Return a rig for a test that sets the consumer otherwise, in a pipeline that starts in seconds."""
    with Processes(tmp_path / "without-spark", child_environment(os.environ)) as standing_processes:
        standing = Standing(standing_processes, pubsub_emulator, bigquery_stand_in, WITHOUT_SPARK)
        rig = Rig(standing, spanner_instance, processes)
        yield rig
        processes.end_all()
        rig.drop()
        standing.close()


@pytest.fixture
def rig(standing: Standing, spanner_instance: SpannerInstance, processes: Processes) -> Iterator[Rig]:
    """Return a rig on a Spanner emulator whose partitions stay as they are."""
    rig = Rig(standing, spanner_instance, processes)
    yield rig
    processes.end_all()
    rig.drop()
