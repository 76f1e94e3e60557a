"""One retry policy: only what is transient, until it succeeds, the budget is spent, or the process is asked to stop."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import tenacity
from google.api_core.exceptions import from_http_status
from grpc.aio import AioRpcError, Metadata
from structlog.testing import capture_logs

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.health import Health
from shared.runtime.metrics import RETRIED
from shared.runtime.retries import AttemptProgress, name_emulators, retried, retrying, retrying_async
from shared.runtime.stop import Stop

SOON = timedelta(milliseconds=1)


def failing(times: int, error: Exception) -> Callable[[], int]:
    """Return a call that fails so many times and then says how often it was called."""
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error
        return calls

    return call


def test_what_is_transient_is_tried_again_until_it_succeeds() -> None:
    assert retrying(Stop(), longest_wait=SOON)(failing(5, TransientError("away"))) == 6


def test_what_is_not_transient_is_raised_at_once() -> None:
    call = failing(1, MisconfiguredError("made-up", "no"))
    with pytest.raises(MisconfiguredError):
        retrying(Stop(), longest_wait=SOON)(call)

    assert call() == 2


def test_when_the_budget_is_spent_the_last_error_is_raised() -> None:
    with pytest.raises(TransientError, match="away"):
        retrying(Stop(), timedelta(milliseconds=5), longest_wait=SOON)(failing(10**9, TransientError("away")))


def test_a_stop_ends_the_retries_and_the_wait_between_them() -> None:
    stop = Stop()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            stop.request()
        raise TransientError("away")

    with pytest.raises(TransientError):
        retrying(stop, longest_wait=SOON)(call)
    assert calls == 2


def test_the_same_holds_in_an_event_loop() -> None:
    async def tried(stop: Stop, times: int) -> int:
        call = failing(times, TransientError("away"))
        async for attempt in retrying_async(stop, longest_wait=SOON):
            with attempt:
                return call()
        raise AssertionError("unreachable")

    async def stopped() -> None:
        stop = Stop()
        asyncio.get_running_loop().call_later(0.01, stop.request)
        await tried(stop, 10**9)

    assert asyncio.run(tried(Stop(), 3)) == 4
    with pytest.raises(TransientError):
        asyncio.run(stopped())


class Reading:
    """Something that takes an hour for each step, and breaks off at a place; the next time elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *breaks: int) -> None:
        self.hours = self.attempts = 0
        self.progress = AttemptProgress()
        self._breaks = breaks
        monkeypatch.setattr(tenacity, "time", SimpleNamespace(monotonic=lambda: 3600.0 * self.hours))

    def __call__(self) -> int:
        self.attempts += 1
        for place in range(10):
            self.hours += 1
            if self.attempts <= len(self._breaks) and place == self._breaks[self.attempts - 1]:
                raise TransientError(f"broken off at {place}")
            self.progress.reached(place)
        return self.attempts

    def tried(self) -> int:
        return retrying(Stop(), timedelta(minutes=1), longest_wait=SOON, progress=self.progress)(self)


def test_what_outlasts_the_budget_is_tried_again_while_it_gets_further(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Reading(monkeypatch, 0).tried() == 2
    assert Reading(monkeypatch, 3, 5, 9).tried() == 4


def test_what_gets_no_further_ends_when_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, 3, 5, 5, 7)

    with pytest.raises(TransientError, match="at 5"):
        reading.tried()

    assert reading.attempts == 3


def test_a_retry_names_its_call_in_the_log() -> None:
    health, call = Health(), _Call()

    async def scenario() -> None:
        await retried(Stop(), call.unavailable_once)
        await retried(Stop(), partial(call.unavailable_once, "again"))
        await retried(Stop(), health.attempting(call.unavailable_once))
        await retried(Stop(), lambda: call.unavailable_once("more"))
        async for attempt in retrying_async(Stop(), longest_wait=SOON):
            with attempt:
                await call.unavailable_once()
        async for attempt in retrying_async(Stop(), longest_wait=SOON, name="read partition p"):
            with attempt:
                await call.unavailable_once()

    with capture_logs() as logs:
        asyncio.run(scenario())
        for attempt in retrying(Stop(), longest_wait=SOON):
            with attempt:
                asyncio.run(call.unavailable_once())
    here = "test_a_retry_names_its_call_in_the_log"
    assert [one["call"] for one in logs if one["event"] == "call_retried"] == [
        *["_Call.unavailable_once"] * 3,
        *[f"{here}.scenario"] * 2,
        "read partition p",
        here,
    ]


@pytest.mark.parametrize(
    ("error", "code", "fixes"),
    [
        ("PERMISSION_DENIED", "PERMISSION_DENIED", 0),
        ("NOT_FOUND TABLE_NOT_FOUND", "NOT_FOUND", 0),
        ("UNAVAILABLE", "UNAVAILABLE", 1),
        ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 1),
        ("of-our-own", "OTHER", 1),
        ("", "OTHER", 1),
    ],
)
def test_a_refusal_is_counted_by_its_code_and_not_blamed_on_the_network(error: str, code: str, fixes: int) -> None:
    before = RETRIED.made()
    with capture_logs() as logs:
        retrying(Stop(), longest_wait=SOON)(failing(6, _RefusedError(error)))

    assert RETRIED.since(before) == {code: 6}
    assert [one["error"] for one in logs] == ["what may be shown"] * 6
    assert sum("fix" in one for one in logs) == fixes


class _RefusedError(TransientError):
    """An error of ours that has its code as a text, and whose words may quote a row."""

    shown = "what may be shown"

    def __init__(self, code: str) -> None:
        super().__init__("value 'secret'")
        self.code = code


def test_while_a_service_does_not_answer_every_fifth_attempt_logs_the_addresses_to_check() -> None:
    name_emulators({"SPANNER_EMULATOR_HOST": "127.0.0.1:1", "PATH": "/bin"})
    attempts = 0

    with capture_logs() as logs:
        for attempt in retrying(Stop(), longest_wait=SOON):
            with attempt:
                attempts += 1
                if attempts < 12:
                    raise TransientError("UNAVAILABLE")
    assert [one["attempt"] for one in logs if "fix" in one] == [5, 10], "not the first four, which are ordinary"
    fix = logs[4]["fix"]
    assert fix.startswith("check the network and ")
    assert "SPANNER_EMULATOR_HOST=127.0.0.1:1" in fix
    assert "PATH" not in fix


class _Call:
    """Fails every other time."""

    def __init__(self) -> None:
        self._calls = 0

    async def unavailable_once(self, _how: str = "") -> None:
        self._calls += 1
        if self._calls % 2:
            raise TransientError("away")


of_http: Any = from_http_status  # untyped


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (of_http(503, "x"), "UNAVAILABLE"),
        (of_http(429, "x"), "RESOURCE_EXHAUSTED"),
        (AioRpcError(grpc.StatusCode.ABORTED, Metadata(), Metadata(), None, None), "ABORTED"),
        (ConnectionResetError(104, "x"), "OTHER"),
        (None, "OTHER"),
    ],
)
def test_retries_are_counted_by_the_code_of_what_caused_them(cause: Exception | None, code: str) -> None:
    before, errors = RETRIED.made(), iter([cause])

    for attempt in retrying(Stop(), timedelta(seconds=30)):
        with attempt:
            for error in errors:
                raise TransientError("away") from error

    assert RETRIED.since(before) == {code: 1}
