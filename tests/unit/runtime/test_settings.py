"""Settings: every mistake in one error."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.durations import format_duration, parse_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.settings import (
    HIDDEN,
    LogLevel,
    check_together,
    file_there,
    hidden,
    read_settings,
    setting,
    settings_shown,
    together,
)


def lower(text: str) -> None:
    if not text.islower():
        raise ValueError("not in lower case")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    project: str = setting("the project", env="GOOGLE_CLOUD_PROJECT")
    heartbeat_interval: timedelta = setting(
        "how often", default=timedelta(seconds=10), least=timedelta(seconds=1), most=timedelta(seconds=300)
    )
    buckets: int = setting("how many", default=16, least=1)
    start_timestamp: Nanoseconds | None = setting("from when", default=None)
    directory: Path | None = setting("where", default=None)
    eager: bool = setting("whether", default=False)
    mode: Literal["fast", "slow"] = setting("how", default="fast")
    name: str = setting("its name", default="n", check=lower)
    token: str | None = setting("who asks", default=None, check=lower, shown=hidden)
    rules: Path | None = setting("a file", default=None, check=file_there)
    log_level: LogLevel = setting("the least severity", default="INFO")

    def __post_init__(self) -> None:
        check_together(self)

    @together
    def _pace(self) -> str | None:
        return "EAGER and MODE=slow contradict each other" if self.eager and self.mode == "slow" else None

    @together
    def _crowd(self) -> str | None:
        return "EAGER and BUCKETS > 16 contradict each other" if self.eager and self.buckets > 16 else None


def test_what_is_not_set_has_its_default() -> None:
    assert read_settings(Settings, {"GOOGLE_CLOUD_PROJECT": "p", "BUCKETS": ""}) == Settings(project="p")


def test_values_arrive_in_their_types() -> None:
    settings = read_settings(
        Settings,
        {
            "GOOGLE_CLOUD_PROJECT": "p",
            "HEARTBEAT_INTERVAL": "2.5s",
            "BUCKETS": "4",
            "START_TIMESTAMP": "1970-01-01T00:00:00.000000001Z",
            "DIRECTORY": "/data",
            "EAGER": "TRUE",
            "MODE": "fast",
        },
    )

    assert settings == Settings(
        project="p",
        heartbeat_interval=timedelta(seconds=2.5),
        buckets=4,
        start_timestamp=Nanoseconds(1),
        directory=Path("/data"),
        eager=True,
    )


def test_one_error_names_every_bad_variable() -> None:
    bad = {
        "HEARTBEAT_INTERVAL": "999ms",
        "BUCKETS": "many",
        "START_TIMESTAMP": "yesterday",
        "EAGER": "perhaps",
        "MODE": "quick",
        "NAME": "N",
        "TOKEN": "SECRET",
        "RULES": "/nowhere/rules.toml",
        "LOG_LEVEL": "loud",
    }

    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, bad)

    for variable in ("GOOGLE_CLOUD_PROJECT", *bad):
        assert variable in str(caught.value)
    assert "the project" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_what_shows_only_when_the_fields_are_seen_together_is_named_too() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, {"GOOGLE_CLOUD_PROJECT": "p", "EAGER": "yes", "MODE": "slow", "BUCKETS": "17"})

    assert str(caught.value).count("contradict each other") == 2


def test_fields_that_contradict_each_other_are_named_beside_those_that_are_wrong_by_themselves() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, {"EAGER": "yes", "MODE": "slow", "BUCKETS": "many"})

    told = str(caught.value)
    assert "GOOGLE_CLOUD_PROJECT is not set" in told
    assert "EAGER and MODE=slow" in told
    assert "BUCKETS='many'" in told
    assert "BUCKETS > 16" not in told, "of what is no number nothing more is said"


def test_what_is_made_without_an_environment_is_checked_too() -> None:
    with pytest.raises(ValueError, match="MODE=slow"):
        Settings(project="p", eager=True, mode="slow")


def test_what_is_shown_is_written_as_it_is_set_and_holds_no_secret() -> None:
    shown = settings_shown(read_settings(Settings, {"GOOGLE_CLOUD_PROJECT": "p", "TOKEN": "secret", "EAGER": "yes"}))

    assert (shown["token"], shown["eager"], shown["directory"]) == (HIDDEN, True, None)
    assert (shown["heartbeat_interval"], shown["buckets"]) == ("10s", 16)
    assert "secret" not in str(shown)
    assert settings_shown(Settings(project="p"))["token"] is None, "none is set: that may be known"


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("10s", 10), ("5m", 300), ("2h", 7200), ("7d", 604800)])
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["10", "s", "-1s", "10 years", "1e3s"])
def test_a_duration_without_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a number and a unit"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=10_000)))
def test_a_duration_is_shown_as_it_would_be_set(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["0d", "7d", "2h", "90s", "5m", "500ms", "0.250ms"])
def test_a_duration_has_the_largest_unit_that_it_is_a_whole_number_of(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


def test_a_duration_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        parse_duration("99999999999d")
