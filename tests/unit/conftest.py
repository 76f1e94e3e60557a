"""What the unit tests have in common: coroutines run in virtual time, and hundreds of histories say nothing."""

import asyncio
import inspect
import logging
from collections.abc import Iterator
from typing import Any, Final

import pytest
import structlog

from tests.fakes.virtual_time import run_in_virtual_time

LONGEST: Final = 360_000
"""Virtual seconds after which a test fails that still waits for something."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in virtual time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asked_for = inspect.signature(pyfuncitem.obj).parameters
    run_in_virtual_time(_limited(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in asked_for}))
    return True


async def _limited(test: Any, fixtures: dict[str, Any]) -> None:
    async with asyncio.timeout(LONGEST):
        await test(**fixtures)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Let hundreds of histories say nothing."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)
