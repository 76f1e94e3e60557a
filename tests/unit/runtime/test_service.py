"""How a service begins and ends: its first and last words, and its exit code."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.last_error import keep_last_error, read_last_error
from shared.runtime.metrics import LAST_FATAL_ERROR, count_runtime
from shared.runtime.service import MISCONFIGURED, run_as, started, stopped
from shared.runtime.stop import Stop, unless_stopped


@dataclass(frozen=True)
class Settings:
    log_level: str = "INFO"
    log_format: str = "auto"
    topic: str = "changes"
    port: int = 8080
    end: str | None = None
    lease: timedelta = timedelta(seconds=90)


def refused() -> int:
    raise MisconfiguredError("made-up", "TOPIC is not set")


def broken() -> int:
    raise TransientError("UNAVAILABLE")


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_what_only_a_person_can_fix_is_in_the_log_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_as("some_service", refused, {}) == MISCONFIGURED == 2
    (line,) = logged(capsys)
    assert (line["service"], line["event"]) == ("some_service", "service_misconfigured")
    assert (line["severity"], line["error"]) == ("ERROR", "TOPIC is not set [made-up]")
    assert line["error_code"] == "made-up"


def test_of_a_command_that_was_typed_it_is_reported_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise MisconfiguredError("made-up", 'invalid configuration:\n  write it as ["7"]')

    assert run_as("some_service", command, {}, typed=True) == MISCONFIGURED
    assert capsys.readouterr().err == 'error: invalid configuration:\n  write it as ["7"] [made-up]\n'


def test_any_other_end_is_the_callers() -> None:
    assert run_as("some_service", lambda: 3, {}) == 3
    with pytest.raises(TransientError):
        run_as("some_service", broken, {})


def test_a_service_reports_first_how_it_was_set_and_last_that_it_has_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def service() -> int:
        started("some_service", Settings(), {})
        stopped()
        return 0

    assert run_as("some_service", service, {}) == 0
    first, last = logged(capsys)
    assert (
        first.items()
        >= {
            "event": "service_started",
            "topic": "changes",
            "port": 8080,
            "end": None,
            "lease": "90s",
        }.items()
    )
    assert "version" in first
    assert last["event"] == "service_stopped"


def test_a_variable_that_is_nearly_a_setting_is_warned_of_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    def service() -> int:
        started("some_service", Settings(), {"LOG_LEVL": "DEBUG", "LOG_LEVELS_OF_ANOTHER": "x"})
        return 0

    assert run_as("some_service", service, {}) == 0
    _first, warned = logged(capsys)
    assert (warned["event"], warned["severity"]) == ("unknown_setting_found", "WARNING")
    assert warned["variable"] == "LOG_LEVL"
    assert "set LOG_LEVEL if that is meant" in str(warned["fix"])


def test_a_retry_that_a_stop_has_ended_is_no_failure_and_any_other_error_is() -> None:
    stop = Stop()
    with pytest.raises(TransientError), unless_stopped(stop):
        broken()
    stop.request()
    with unless_stopped(stop):
        broken()
    with pytest.raises(MisconfiguredError), unless_stopped(stop):
        refused()


@pytest.mark.parametrize(
    ("ends", "code"), [(refused, "made-up"), (broken, "failed"), (lambda: 1, "failed"), (lambda: 3, None)]
)
def test_the_metrics_name_the_error_that_ended_the_process_before(
    ends: Callable[[], int], code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    LAST_FATAL_ERROR.clear()
    environ = {"PORT": "8080/a"}
    began = int(time.time())
    with contextlib.suppress(TransientError):
        run_as("some_service", ends, environ)
    run_as("some_service", refused, environ, typed=True)  # a command, not the service
    run_as("some_service", refused, {"PORT": "8081"})  # another one
    started("some_service", Settings(), environ)

    samples = {
        (one.labels["service"], one.labels["code"]): one.value
        for family in LAST_FATAL_ERROR.collect()
        for one in family.samples
    }
    assert samples.keys() == ({("some_service", code)} if code else set())
    assert all(began <= at <= time.time() + 1 for at in samples.values())


def test_a_last_error_that_another_user_left_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keep_last_error("some_service", "made-up", {})
    assert read_last_error("some_service", {}) is not None
    (directory,) = tmp_path.iterdir()
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    assert read_last_error("some_service", {}) is None


def test_the_metrics_name_service_and_version() -> None:
    started("some_service", Settings(), {"MILLRACE_VERSION": "1.2.3"})
    registry = CollectorRegistry()
    count_runtime(registry)

    assert registry.get_sample_value("millrace_build_info", {"service": "some_service", "version": "1.2.3"}) == 1
