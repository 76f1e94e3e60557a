"""The options of our data source and sink, and how Spark carries them: one option, ``settings``, a dataclass's JSON.

Every process that Spark starts to plan a micro-batch reads them, so nothing is imported here that takes long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from shared.contracts.errors import MisconfiguredError

_OPTION: Final = "settings"
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAddress:
    """Where the driver listens, and what it has to be shown."""

    host: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of the source."""

    subscription: str
    """Its full name."""
    emulator_host: str | None = None
    tasks: int = 2
    """How many read when behind."""
    micro_batch_messages: int = 10_000
    micro_batch_bytes: int = 128 * 1024 * 1024
    linger: timedelta = timedelta(milliseconds=50)
    """How long a task waits for more messages when quiet; ``longest_linger`` when behind."""
    longest_linger: timedelta = timedelta(seconds=2)
    idle_wait: timedelta = timedelta(seconds=8)
    """How long one call blocks while there are no messages."""
    ack_deadline: timedelta | None = None
    """None: Pub/Sub is asked for it."""
    stop_file: str | None = None
    """Once this file is there, the wait ends."""
    drained_file: str | None = None
    """Where Spark itself does not drain a source: this file says that the subscription is drained; None: read on."""
    driver: DriverAddress | None = None
    """Where the leases taken are reported; None: nowhere."""
    data_directory: str | None = None
    """Where the messages' data goes past Spark, if all tasks run on one machine (`data_files`)."""
    sink_tasks: tuple[int, ...] = (0,)
    """What the column ``task`` says for each task of the sink (`partitioning`)."""
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if min(self.tasks, self.micro_batch_messages, self.micro_batch_bytes) < 1:
            raise MisconfiguredError(
                "pubsub-option-too-small", "options tasks, micro_batch_messages and micro_batch_bytes are at least 1"
            )
        if not timedelta(seconds=1) <= self.idle_wait <= timedelta(minutes=1):
            raise MisconfiguredError(
                "idle-wait-out-of-bounds",
                "option idle_wait has to be between 1s and 60s: a stop may have to wait that long",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of the sink."""

    subscription: str
    """Its full name, as the dead-letter topic's."""
    dead_letter_topic: str
    project: str
    """Of BigQuery, as the dataset."""
    dataset: str
    ack_deadline: timedelta | None = None
    """None: Pub/Sub is asked for it."""
    pubsub_emulator_host: str | None = None
    bigquery_emulator_host: str | None = None
    bigquery_storage_emulator_host: str | None = None
    driver: DriverAddress | None = None
    """Where tasks report counts and outstanding messages, ask before they dead-letter, and hear of a stop.

    None: nowhere; each process has a dead-letter limit of its own.
    """
    state_directory: str | None = None
    """Where workers keep crash counts, and until when messages are deferred. It outlives them."""
    tables_file: str = ""
    """The text of one, because workers do not see the driver's disk; empty: every table is mirrored."""
    mask_key: str = ""
    """The fingerprint of the key that the tables file names; empty: it needs none. Each machine has the key itself."""
    data_directory: str | None = None
    """As the source's."""
    clock_margin: timedelta = timedelta(minutes=5)
    """How far ahead of BigQuery's clock a source's times may be."""
    log_level: str = "INFO"


def encode_options(settings: object) -> dict[str, str]:
    """Return the options for Spark that carry a dataclass to its processes."""
    return {_OPTION: msgspec.json.encode(settings).decode()}


def decode_options(settings: type[_Settings], options: Mapping[str, str]) -> _Settings:
    """Return the dataclass in Spark's options; MisconfiguredError names the field that is missing or malformed."""
    try:
        return msgspec.json.decode(options.get(_OPTION, "{}"), type=settings)
    except msgspec.MsgspecError as error:
        raise MisconfiguredError(
            "spark-option-invalid", f"option {_OPTION}, the JSON of {settings.__name__}: {error}"
        ) from error
