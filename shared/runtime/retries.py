"""The one retry policy: only what is transient, with truncated exponential backoff, within a budget of time.

Source of the shape: BigQuery, "Introduction to the Storage Write API", error handling (exponential backoff for short
faults, a deliberate policy for long ones). Retries are not nested: where a client retries, that is turned off.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    stop_never,
    stop_when_event_set,
    wait_random_exponential,
)
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_base

from shared.contracts.errors import TransientError
from shared.runtime.metrics import OTHER_CODE, RETRIED, retry_code
from shared.runtime.stop import Stop

LONGEST_WAIT = timedelta(seconds=10)
_LASTING = 5
"""Every so many attempts the log entry names what to check: fewer are ordinary."""
_UNANSWERED = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", OTHER_CODE})
"""The codes of what may be the network's fault: any other is an answer of the service."""
_emulators: dict[str, str] = {}

T = TypeVar("T")


def name_emulators(variables: Mapping[str, str | None]) -> None:
    """Take from a process's variables those of emulators: the log names them beside a call that fails for long."""
    _emulators.update({name: host for name, host in variables.items() if name.endswith("_EMULATOR_HOST") and host})


class AttemptProgress:
    """How far attempts have come that take long, each of which may begin again: further than any before is progress."""

    def __init__(self) -> None:
        self._furthest = 0
        self._made = False

    def reached(self, place: int) -> None:
        """Say how far this attempt is."""
        if place > self._furthest:
            self._furthest, self._made = place, True

    def made(self) -> bool:
        """Return whether there was any since this was asked last."""
        made, self._made = self._made, False
        return made


def retrying(
    stop: Stop,
    budget: timedelta | None = None,
    longest_wait: timedelta | Callable[[], timedelta] = LONGEST_WAIT,
    *,
    progress: AttemptProgress | None = None,
) -> Retrying:
    """Retry what raises TransientError; without ``budget`` until it succeeds or the process is asked to stop.

    The budget counts from the first attempt's start. With ``progress``, for what takes longer than that even without an
    error, from the first failure after any: so what has come further than ever before is always tried again.
    ``longest_wait`` may be a function that is asked before each wait.
    The log calls it after the function that asks for it.
    What the last attempt raised is raised again. Use as ``retrying(...)(call)``, or as ``for attempt in
    retrying(...): with attempt: ...``.
    """

    def wait(state: RetryCallState) -> float:
        longest = longest_wait() if callable(longest_wait) else longest_wait
        return wait_random_exponential(multiplier=0.1, max=longest.total_seconds())(state)

    return Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=wait,
        stop=_ends(stop, budget, progress),
        sleep=sleep_using_event(stop.event),
        before_sleep=partial(_log, _caller()),
        reraise=True,
    )


def retrying_async(
    stop: Stop, budget: timedelta | None = None, longest_wait: timedelta = LONGEST_WAIT, *, name: str | None = None
) -> AsyncRetrying:
    """Do the same in an event loop: ``async for attempt in retrying_async(...): with attempt: ...``.

    ``name``: what the log calls it, if not that function.
    """

    async def sleep(seconds: float) -> None:
        waiter = asyncio.ensure_future(stop.wait_async())
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiter.cancel()

    return AsyncRetrying(
        retry=retry_if_exception_type(TransientError),
        wait=wait_random_exponential(multiplier=0.1, max=longest_wait.total_seconds()),
        stop=_ends(stop, budget),
        sleep=sleep,
        before_sleep=partial(_log, name or _caller()),
        reraise=True,
    )


async def retried(stop: Stop, call: Callable[[], Awaitable[T]], budget: timedelta | None = None) -> T:
    """Make a call again until it succeeds, or until asked to stop, or until the budget is spent."""
    async for attempt in retrying_async(stop, budget, name=_name(call)):
        with attempt:
            return await call()
    raise AssertionError("a retry ends with a value or an error")


class _NoProgress(stop_base):
    """Ends attempts once none has made progress for a time."""

    def __init__(self, budget: timedelta, progress: AttemptProgress) -> None:
        self._budget = budget.total_seconds()
        self._progress = progress
        self._since: float | None = None

    def __call__(self, retry_state: RetryCallState) -> bool:
        failed = retry_state.outcome_timestamp
        assert failed is not None
        if self._progress.made() or self._since is None:
            self._since = failed
        return failed - self._since >= self._budget


def _ends(stop: Stop, budget: timedelta | None, progress: AttemptProgress | None = None) -> stop_base:
    asked = stop_when_event_set(stop.event)
    if budget is None:
        return stop_never | asked
    return (stop_after_delay(budget) if progress is None else _NoProgress(budget, progress)) | asked


def _caller() -> str:
    """Return the name of the function that has called the one that calls this."""
    return _plain(sys._getframe(2).f_code.co_qualname)


def _name(call: Any) -> str:
    while isinstance(call, partial):
        call = call.func
    return _plain(str(getattr(call, "__qualname__", type(call).__qualname__)))


def _plain(name: str) -> str:
    return name.replace(".<locals>", "").replace(".<lambda>", "")


def _log(name: str, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    RETRIED.add(retry_code(error))
    fix = what_to_check(error) if state.attempt_number % _LASTING == 0 else ""
    more = {"fix": fix} if fix else {}
    shown = getattr(error, "shown", str(error))  # the words of some may quote a row
    structlog.get_logger().warning("call_retried", call=name, attempt=state.attempt_number, error=shown, **more)


def what_to_check(error: BaseException | None) -> str:
    """Return an error's fix, or what to check where a service does not answer: an emulator's address, often.

    Empty where it has answered: its answer says what is wrong, and the network is not.
    """
    if isinstance(error, TransientError) and error.fix:
        return error.fix
    if retry_code(error) not in _UNANSWERED:
        return ""
    emulators = [f"{name}={host}" for name, host in sorted(_emulators.items())]
    return f"check the network{' and ' + ', '.join(emulators) if emulators else ''}"
