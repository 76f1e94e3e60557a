"""What the service and its commands are told, and what of it may be logged."""

from datetime import timedelta
from pathlib import Path

import pytest

from services.dead_letter.settings import CommandSettings, Settings, is_loopback, redacted, watched_services
from services.dead_letter.wiring.commands import _who
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import HIDDEN, read_settings, settings_shown

LEAST = {"GOOGLE_CLOUD_PROJECT": "p", "DEAD_LETTER_SUBSCRIPTION": "letters"}


def test_the_service_needs_a_project_and_a_subscription_and_names_both() -> None:
    with pytest.raises(MisconfiguredError, match=r"GOOGLE_CLOUD_PROJECT is not set[^$]*DEAD_LETTER_SUBSCRIPTION is"):
        read_settings(Settings, {})


def test_all_else_has_a_default() -> None:
    settings = read_settings(Settings, LEAST)

    assert settings.database == "sqlite:///dead_letters.sqlite3"
    assert settings.keep_dead_letters_for == timedelta(days=90)
    assert settings.max_replays == 3
    assert settings.dataset_project == "p"


@pytest.mark.parametrize(
    ("variable", "most", "more"),
    [("PULL_BYTES", f"{2**31 - 1}", f"{2**31}"), ("KEEP_DEAD_LETTERS_FOR", "36500d", "999999d")],
)
def test_what_no_database_or_client_takes_is_refused(variable: str, most: str, more: str) -> None:
    read_settings(Settings, LEAST | {variable: most})
    with pytest.raises(MisconfiguredError, match=variable):
        read_settings(Settings, LEAST | {variable: more})


def test_the_commands_need_nothing() -> None:
    assert read_settings(CommandSettings, {}).project is None


def test_a_token_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t")
    with pytest.raises(MisconfiguredError, match="API_TOKEN or API_TOKEN_FILE"):
        read_settings(Settings, LEAST | {"API_TOKEN": "t", "API_TOKEN_FILE": str(file)})


def test_a_store_of_another_kind_is_a_mistake_among_the_others_and_its_password_is_not_repeated() -> None:
    variables = {"DATABASE": "oracle://me:s3cret@host/store", "PORT": "high", "IAP_KEYS_FILE": "/nowhere"}
    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, variables)

    for variable in (*LEAST, *variables):
        assert variable in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("database", "shown"),
    [
        ("sqlite:///dead_letters.sqlite3", "sqlite:///dead_letters.sqlite3"),
        ("sqlite:////var/lib/a@b:c.sqlite3", "sqlite:////var/lib/a@b:c.sqlite3"),
        ("postgresql+psycopg://me:secret@host:5432/letters", f"postgresql+psycopg://me:{HIDDEN}@host:5432/letters"),
        ("postgresql+psycopg://me:se@cr/et@host/store", f"postgresql+psycopg://me:{HIDDEN}@host/store"),
        ("postgresql+psycopg://:secret@host/store", f"postgresql+psycopg://:{HIDDEN}@host/store"),
        ("postgresql+psycopg://host/store", "postgresql+psycopg://host/store"),
        (
            "postgresql+psycopg://host/store?user=me&password=secret&sslmode=require",
            f"postgresql+psycopg://host/store?user=me&password={HIDDEN}&sslmode=require",
        ),
        ("postgresql:/me:secret@host/store", HIDDEN),
        ("postgresql//me:secret@host/store", HIDDEN),
        ("host=h user=me password=secret dbname=store", HIDDEN),
        ("me:secret@host/store", HIDDEN),
        ("jdbc:postgresql://host/store?user=me;password=secret", HIDDEN),
    ],
)
def test_a_password_is_never_shown(database: str, shown: str) -> None:
    assert redacted(database) == shown


def test_what_is_logged_holds_no_secret() -> None:
    variables = LEAST | {"API_TOKEN": "t0ken", "DATABASE": "postgresql+psycopg://me:s3cret@host/store"}

    shown = settings_shown(read_settings(Settings, variables))

    assert shown["api_token"] == HIDDEN
    assert shown["keep_dead_letters_for"] == "90d"
    assert not [value for value in shown.values() if "s3cret" in str(value) or "t0ken" in str(value)]


def test_there_is_no_api_unless_its_port_is_set_and_then_it_listens_to_this_machine() -> None:
    assert read_settings(Settings, LEAST).api_port is None
    served = read_settings(Settings, LEAST | {"API_PORT": "8083"})
    assert (served.api_host, served.api_port) == ("127.0.0.1", 8083)


@pytest.mark.parametrize("known", ["API_TOKEN", "API_TOKEN_FILE", "IAP_AUDIENCE"])
def test_an_api_that_others_reach_knows_who_they_are(known: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t")
    others = LEAST | {"API_PORT": "8083", "API_HOST": "0.0.0.0"}  # noqa: S104  what is refused
    with pytest.raises(MisconfiguredError, match="set API_TOKEN, API_TOKEN_FILE or IAP_AUDIENCE, or API_HOST=127"):
        read_settings(Settings, others)
    assert read_settings(Settings, others | {known: str(file)}).api_port == 8083


def test_keys_of_a_proxy_that_is_not_named_are_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("{}")
    with pytest.raises(MisconfiguredError, match="IAP_KEYS_FILE is for IAP_AUDIENCE"):
        read_settings(Settings, LEAST | {"IAP_KEYS_FILE": str(file)})


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("api", False)],  # noqa: S104
)
def test_loopback_is_what_only_this_machine_reaches(host: str, ours: bool) -> None:
    assert is_loopback(host) is ours


def test_services_to_watch_are_named_with_their_addresses() -> None:
    found = watched_services(" consumer=http://c:8081, my orders=https://o.example/reader/ ,v6=http://[::1]:80,")
    assert found == {"consumer": "http://c:8081", "my orders": "https://o.example/reader", "v6": "http://[::1]:80"}
    assert watched_services(None) == {}


@pytest.mark.parametrize(
    "wrong",
    ["http://c:8081", "c=c:8081", "c=ftp://c", "c=http://u:p@c", "=http://c", "c=http://c,c=http://d", "c=http://c?q"],
)
def test_an_address_that_is_none_is_refused_with_how_to_write_it(wrong: str) -> None:
    with pytest.raises(MisconfiguredError, match=r"CONSOLE_SERVICES=.* is no service: write NAME=http://HOST:PORT"):
        read_settings(Settings, LEAST | {"CONSOLE_SERVICES": wrong})


def test_the_name_of_who_acts_can_be_written_whatever_its_bytes_are() -> None:
    assert _who({"MILLRACE_USER": "Jos\udce9"}).encode() == b"Jos?"
