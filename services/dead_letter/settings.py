"""The settings of this service and of the commands beside it, read once from the environment."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from shared.runtime.settings import LogLevel, setting

HIDDEN: Final = "***"

# SQLAlchemy's form: dialect+driver://user:password@host/name?option=value. A password that holds a bare "@" or "/" is
# a mistake, and no reason to show it.
_PASSWORD: Final = re.compile(r"(://[^:/@]*:).*(@)")
_SECRET_OPTION: Final = re.compile(r"([?&][^=&]*(?:password|passfile|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """What the commands are told: which store, and for a replay where letters go and what may have superseded them."""

    project: str | None = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", default=None)
    topic: str | None = setting("the topic of the change batches, where replays go", default=None)
    database: str = setting("the store, as an SQLAlchemy URL", default="sqlite:///dead_letters.sqlite3")
    max_replays: int = setting(
        "after so many replays a letter waits for a person: by its id, or forced", default=3, least=1
    )
    bigquery_project: str | None = setting("the mirrors' project; the project", default=None)
    bigquery_dataset: str | None = setting(
        "the dataset of the mirrors, where it is seen whether a letter is superseded; else that is not asked",
        default=None,
    )
    tables_file: Path | None = setting("under what names tables are mirrored (TOML); as they are", default=None)
    log_level: LogLevel = setting("the least severity that is logged", default="INFO")
    pubsub_emulator_host: str | None = setting("host:port of an emulator", default=None)
    bigquery_emulator_host: str | None = setting("host:port of a stand-in's REST side", default=None)

    @property
    def dataset_project(self) -> str | None:
        """Return the project that the mirrors' dataset is in."""
        return self.bigquery_project or self.project

    def shown(self) -> Mapping[str, object]:
        """Return the settings as they may be logged: without passwords and tokens."""
        values = {name: value if isinstance(value, int | None) else str(value) for name, value in asdict(self).items()}
        values["database"] = redacted(self.database)
        if values.get("api_token") is not None:
            values["api_token"] = HIDDEN
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CommandSettings):
    """What the service is told at its start."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT")
    dead_letter_subscription: str = setting("the subscription of the dead-letter topic")
    keep_letters_for: timedelta = setting(
        "how long letters that are not open are kept", default=timedelta(days=90), least=timedelta(0)
    )
    keep_messages_for: timedelta = setting(
        "how long the subscription has to keep messages", default=timedelta(days=7), least=timedelta(minutes=10)
    )
    pull_messages: int = setting("messages that are leased at once, at most", default=500, least=1, most=1000)
    pull_bytes: int = setting(
        "bytes of messages that are leased at once, at most; a message may have ten million",
        default=32 << 20,
        least=11_000_000,
    )
    api_host: str = setting(
        "the address that the HTTP API listens on; on another than a loopback one, reads take a token too",
        default="127.0.0.1",
    )
    api_port: int | None = setting(
        "of the HTTP API, 0 for a free one; without it there is none", default=None, least=0, most=65_535
    )
    api_token: str | None = setting("what a request has to bring that writes or shows values", default=None)
    api_token_file: Path | None = setting("a file that holds it, or a line NAME TOKEN for each person", default=None)
    iap_audience: str | None = setting(
        "the audience of the identity-aware proxy before the HTTP API, whose signed header then says who writes",
        default=None,
    )
    iap_keys_file: Path | None = setting(
        "that proxy's public keys, as it publishes them; else they are fetched", default=None
    )
    host: str = setting("the address that health and metrics listen on", default="127.0.0.1")
    port: int = setting("of health and metrics; 0 for a free one", default=8082, least=0, most=65_535)

    def __post_init__(self) -> None:
        """Check what shows only when the fields are seen together."""
        if self.api_token is not None and self.api_token_file is not None:
            raise ValueError("set API_TOKEN or API_TOKEN_FILE, not both")
        if self.iap_keys_file is not None and self.iap_audience is None:
            raise ValueError("IAP_KEYS_FILE is for IAP_AUDIENCE: set that too")
        known = (self.api_token, self.api_token_file, self.iap_audience)
        if self.api_port is not None and not is_loopback(self.api_host) and known == (None, None, None):
            raise ValueError(
                f"API_HOST={self.api_host} lets others read keys and table names: set API_TOKEN, API_TOKEN_FILE or "
                "IAP_AUDIENCE, or API_HOST=127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Tell whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def redacted(database: str) -> str:
    """Return a database's URL without its password."""
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1{HIDDEN}\2", database))
