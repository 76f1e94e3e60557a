"""The settings of this service and of the commands beside it, read once from the environment."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from shared.runtime.google_names import dataset_id, project_id, subscription_id, topic_id
from shared.runtime.settings import HIDDEN, LogFormat, LogLevel, check_together, file_there, hidden, setting, together

# SQLAlchemy's form: dialect+driver://user:password@host/name?option=value. A password that holds a bare "@" or "/" is
# a mistake, and no reason to show it.
_PASSWORD: Final = re.compile(r"(://[^:/@]*:).*(@)")
_SECRET_OPTION: Final = re.compile(r"([?&][^=&]*(?:password|passfile|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)

_WATCHED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}")
_ADDRESS: Final = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._/-]*)?")
_KINDS: Final = re.compile(r"(?:sqlite|postgres|postgresql)(?:\+[a-z0-9_]+)?://.*", re.DOTALL)


def redacted(database: str) -> str:
    """Return a database's URL without its password; nothing of a text that is none, for that may be anywhere in it."""
    if _KINDS.fullmatch(database) is None:
        return HIDDEN
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1{HIDDEN}\2", database))


def _database(address: str) -> None:
    if _KINDS.fullmatch(address) is None:
        raise ValueError(
            "not an address of a kind that is supported: sqlite:///PATH, or postgresql://USER:PASSWORD@HOST/DATABASE"
        )


def watched_services(text: str | None) -> Mapping[str, str]:
    """Return the addresses of services by their names; ValueError with the fix where one is none."""
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        name, _is, address = (each.strip() for each in part.partition("="))
        if not part.strip():
            continue
        if not _WATCHED.fullmatch(name) or not _ADDRESS.fullmatch(address) or name in found:
            raise ValueError(
                f"{part.strip()[:100]!r} is no service: write NAME=http://HOST:PORT for each, with commas between"
            )
        found[name] = address.rstrip("/")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """Settings of the commands: the store, and for a replay the topic and the mirrors."""

    project: str | None = setting(
        "the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", default=None, check=project_id
    )
    topic: str | None = setting("the topic of the change batches, where replays go", default=None, check=topic_id)
    database: str = setting(
        "the store, as an SQLAlchemy URL", default="sqlite:///dead_letters.sqlite3", check=_database, shown=redacted
    )
    max_replays: int = setting(
        "after so many replays a dead letter waits for a person: by its id, or forced",
        unit="replays",
        default=3,
        least=1,
    )
    bigquery_project: str | None = setting("the mirrors' project; the project", default=None, check=project_id)
    bigquery_dataset: str | None = setting(
        "the dataset of the mirrors, which show whether a dead letter is superseded; else that is not checked",
        default=None,
        check=dataset_id,
    )
    tables_file: Path | None = setting(
        "under what names tables are mirrored (TOML); as they are", default=None, check=file_there
    )
    console_services: str | None = setting(
        "the services that the console and `watch` show beside dead letters: NAME=http://HOST:PORT each, with commas "
        "between; the address is that of health and metrics",
        default=None,
        check=watched_services,
    )
    console_settings: str | None = setting(
        "the directory that has the settings of each of them in NAME.env, and its log in NAME.log: commands that are "
        "shown load the settings first",
        default=None,
    )
    log_level: LogLevel = setting("the least severity that is logged", default="INFO")
    log_format: LogFormat = setting("text is for people; auto: text where stderr is a terminal", default="auto")
    pubsub_emulator_host: str | None = setting("host:port of an emulator", default=None)
    bigquery_emulator_host: str | None = setting("host:port of a stand-in's REST side", default=None)

    @property
    def dataset_project(self) -> str | None:
        """Return the project that the mirrors' dataset is in."""
        return self.bigquery_project or self.project


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CommandSettings):
    """The settings of the service."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", check=project_id)
    dead_letter_subscription: str = setting("the subscription of the dead-letter topic", check=subscription_id)
    keep_dead_letters_for: timedelta = setting(
        "how long dead letters that are not open are kept", default=timedelta(days=90), least=timedelta(0)
    )
    keep_messages_for: timedelta = setting(
        "how long the subscription has to keep messages", default=timedelta(days=7), least=timedelta(minutes=10)
    )
    pull_messages: int = setting(
        "messages that are leased at once, at most", unit="messages", default=500, least=1, most=1000
    )
    pull_bytes: int = setting(
        "bytes of messages that are leased at once, at most; a message may have ten million",
        unit="bytes",
        default=32 << 20,
        least=11_000_000,
        most=(1 << 31) - 1,
    )
    api_host: str = setting(
        "the address that the HTTP API listens on; on another than a loopback one, reads take a token too",
        default="127.0.0.1",
    )
    api_port: int | None = setting(
        "of the HTTP API, 0 for a free one; without it there is none", default=None, least=0, most=65_535
    )
    api_token: str | None = setting(
        "what a request has to bring that writes or shows values", default=None, shown=hidden
    )
    api_token_file: Path | None = setting(
        "a file that holds it, or a line NAME TOKEN for each person", default=None, check=file_there
    )
    iap_audience: str | None = setting(
        "the audience of the identity-aware proxy before the HTTP API, whose signed header then names who writes",
        default=None,
    )
    iap_keys_file: Path | None = setting(
        "that proxy's public keys, as it publishes them; else they are fetched", default=None, check=file_there
    )
    liveness: timedelta = setting(
        "how long the loop may take to come round, until /healthz reports that it hangs; one that waits for a service "
        "comes round at each retry",
        default=timedelta(minutes=2),
        least=timedelta(seconds=15),
    )
    host: str = setting("the address that health and metrics listen on", default="127.0.0.1")
    port: int = setting("of health and metrics; 0 for a free one", default=8082, least=0, most=65_535)

    def __post_init__(self) -> None:
        """Check what shows only when the fields are seen together."""
        check_together(self)

    @together
    def _one_token(self) -> str | None:
        both = self.api_token is not None and self.api_token_file is not None
        return "set API_TOKEN or API_TOKEN_FILE, not both" if both else None

    @together
    def _keys_of_a_proxy(self) -> str | None:
        alone = self.iap_keys_file is not None and self.iap_audience is None
        return "IAP_KEYS_FILE is for IAP_AUDIENCE: set that too" if alone else None

    @together
    def _callers(self) -> str | None:
        known = (self.api_token, self.api_token_file, self.iap_audience)
        if self.api_port is None or is_loopback(self.api_host) or known != (None, None, None):
            return None
        return (
            f"API_PORT at API_HOST={self.api_host} lets others read keys and table names: set API_TOKEN, "
            "API_TOKEN_FILE or IAP_AUDIENCE, or API_HOST=127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
