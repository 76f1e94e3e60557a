"""The emulators and the stand-in, once for a session (Spanner's for a module); a fresh database for each test.

A machine without the Cloud SDK or Java fails these tests with the message that names the need: nothing is skipped.
"""

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase, SpannerInstance
from tests.schedule import Schedule
from tests.seeds import ALL_SEEDS, SEEDS, examples

PROJECT = "millrace-test"

# A busy machine is no fault of a property: how long an example takes to make or to run proves nothing here.
# `make test` tries the same examples each time, so a change fails for what it changed; `make test-all` tries others.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize=SEEDS < ALL_SEEDS,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what this suite takes on its command line."""
    parser.addoption(
        "--write-costs", action="store_true", help="measure the seconds of each module into tests/costs.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Order the tests by what they cost."""
    config.pluginmanager.register(Schedule(config))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async` test in an event loop of its own; the async contexts of its fixtures are opened in it."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def run() -> None:
        async with AsyncExitStack() as opened:
            arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await opened.enter_async_context(value)
            await test(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Undo what a test's call of a service's `main` does to this process: to its logs, its hooks, its signals."""
    before, root, level = structlog.get_config(), logging.getLogger(), logging.getLogger().level
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    handlers, hooks = list(root.handlers), (sys.excepthook, threading.excepthook, sys.unraisablehook)
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(capture=False)
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = [one for one in root.handlers if one in handlers or type(one) is not logging.StreamHandler]
    root.setLevel(level)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that holds the logs of every process of the session."""
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="session")
def platform_processes(logs: Path) -> Iterator[Processes]:
    """Return the processes that live as long as the session."""
    with Processes(logs, os.environ) as processes:
        yield processes


@pytest.fixture(scope="module")
def spanner_emulator(platform_processes: Processes) -> Iterator[str]:
    """Return ``host:port`` of a Spanner emulator whose partitions stay as they are.

    One for each module: a query whose reader was killed goes on in it, and takes the processor from what comes after.
    """
    with emulators.spanner_emulator(platform_processes, enable_change_stream_churning="false") as address:
        yield address


@pytest.fixture(scope="session")
def pubsub_emulator(platform_processes: Processes) -> Iterator[str]:
    """Return ``host:port`` of a Pub/Sub emulator."""
    with emulators.pubsub_emulator(platform_processes) as address:
        yield address


@pytest.fixture(scope="session")
def bigquery_stand_in(platform_processes: Processes) -> Iterator[tuple[str, str]]:
    """Return ``host:port`` of the stand-in's REST side and of its write API (gRPC)."""
    with emulators.bigquery_stand_in(platform_processes) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def bigtable_emulator(platform_processes: Processes) -> Iterator[str]:
    """Return ``host:port`` of a Bigtable emulator as it is: the calls of change streams would end it."""
    with emulators.bigtable_emulator(platform_processes) as address:
        yield address


@pytest.fixture(scope="session")
def bigtable_front(platform_processes: Processes) -> Iterator[str]:
    """Return ``host:port`` of a Bigtable emulator with the front that adds change streams to it."""
    with emulators.bigtable_front(platform_processes) as address:
        yield address


@pytest.fixture
def new_processes(tmp_path: Path) -> Iterator[Processes]:
    """Return processes of one test: what it starts is ended after it."""
    with Processes(tmp_path / "processes", os.environ) as processes:
        yield processes


@pytest.fixture(scope="module")
def spanner_instance(spanner_emulator: str) -> SpannerInstance:
    """Return an instance on the session's emulator."""
    return SpannerInstance.create(spanner_emulator, PROJECT, "tests")


@pytest.fixture
def database(spanner_instance: SpannerInstance) -> Iterator[Callable[..., SpannerDatabase]]:
    """Return a function that makes a fresh database from DDL statements; each is dropped after the test.

    Fresh, because the emulator slows down with the history of its change streams.
    """
    made: list[SpannerDatabase] = []

    def make(*statements: str, postgresql: bool = False, protos: bytes = b"") -> SpannerDatabase:
        made.append(spanner_instance.create_database(statements, postgresql=postgresql, protos=protos))
        return made[-1]

    yield make
    for one in made:
        one.drop()
