"""What the other services answer at `/status`, and how each was when it was polled.

An answer comes over the network: its shape and its size are checked, and nothing in it is trusted to be what it says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import msgspec

from shared.contracts.timestamps import Nanoseconds

MOST_TABLES_SHOWN: Final = 500


class ResyncCause(msgspec.Struct):
    """Why a table is pending resync."""

    kind: str = ""


class PendingResync(msgspec.Struct):
    """A table whose mirror may be wrong, as its reader says."""

    table: str
    since: str = ""
    why: list[ResyncCause] = []
    fix: str = ""


class PausedTable(msgspec.Struct):
    """A table whose changes are dropped."""

    table: str
    since: str = ""


class Backlog(msgspec.Struct):
    """What waits in a subscription of the topic or of the dead-letter topic, as a reader knows it."""

    subscription: str
    retention_seconds: float = 0.0
    oldest_seconds: float | None = None
    """Age of the oldest message that is not acked; None: not known."""

    @property
    def left_seconds(self) -> float | None:
        """Return for how long the oldest message is still kept, where more than half of its time is over."""
        if self.oldest_seconds is None or self.oldest_seconds < self.retention_seconds / 2:
            return None
        return max(0.0, self.retention_seconds - self.oldest_seconds)


class _Status(msgspec.Struct, tag_field="service"):
    state: str = ""


class ReaderStatus(_Status):
    """What both readers answer."""

    partitions: dict[str, int] = {}
    low_watermark: str | None = None
    lag_seconds: float | None = None
    pending_resync: list[PendingResync] = []
    backlogs: list[Backlog] = []


class SpannerReaderStatus(ReaderStatus, tag="spanner_reader"):
    """What a Spanner reader answers."""

    paused_tables: list[PausedTable] = []


class BigtableReaderStatus(ReaderStatus, tag="bigtable_reader"):
    """What a Bigtable reader answers."""

    low_watermark_stalled_seconds: float | None = None


class TableTrouble(msgspec.Struct):
    """What is wrong with a mirror."""

    state: str
    since: str | None = None
    why: str = ""


class TableLag(msgspec.Struct):
    """How long the latest change of a table has taken, in seconds."""

    commit_to_published: float | None = None
    published_to_applied: float | None = None


class TableStatus(msgspec.Struct):
    """How a table is at the consumer."""

    table: str
    state: str = ""
    troubles: list[TableTrouble] = []
    committed: str | None = None
    complete_since: str | None = None
    lag_seconds: TableLag = msgspec.field(default_factory=TableLag)


class ConsumerLabels(msgspec.Struct):
    """Whether the consumer could list the mirrors."""

    error: str = ""


class ChangeCounts(msgspec.Struct):
    """Changes that the consumer has counted since it started."""

    written: int = 0


class ConsumerLag(msgspec.Struct):
    """How old the oldest message is that the consumer has leased, in seconds."""

    oldest_outstanding: float | None = None


class ConsumerAnswer(_Status, tag="cdc_consumer"):
    """What the consumer answers."""

    since: str | None = None
    tables: list[TableStatus] = []
    labels: ConsumerLabels = msgspec.field(default_factory=ConsumerLabels)
    changes: ChangeCounts = msgspec.field(default_factory=ChangeCounts)
    lag_seconds: ConsumerLag = msgspec.field(default_factory=ConsumerLag)
    sources: dict[str, str | None] = {}
    """Up to when the readers of each source have published everything, by the heartbeats that arrived."""


ServiceStatus = SpannerReaderStatus | BigtableReaderStatus | ConsumerAnswer
_decoder: Final[msgspec.json.Decoder[ServiceStatus]] = msgspec.json.Decoder(ServiceStatus)


def status_of(data: bytes) -> ServiceStatus:
    """Return the status in an answer; ValueError where it is none of a service that can be watched."""
    try:
        data.decode()
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the answer is not a status of a reader or the consumer: {error}") from None


_NEWEST: Final = 0.2
"""The weight of the newest change of a lag in the average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """What a service has answered: whether it is ready, why not, and its status."""

    ready: bool
    obstacles: str
    status: bytes


class Silence(Enum):
    """How a service does not answer with its status; a member's value is what is shown of it."""

    HANGS = "hangs"
    """It neither answers nor refuses in time, as a suspended process."""
    REFUSES = "refuses connections"
    """No process listens at its address."""
    UNREACHABLE = "cannot be reached"
    """There is no way to its address, or its name does not resolve."""
    NO_STATUS = "answers without a status"
    """It is something else, or of another version, or failed to make its status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedService:
    """A service as it was when it was polled last; its status is that of its last answer, however old."""

    name: str
    address: str
    polled_at: Nanoseconds | None = None
    """None: the first answer is still to come."""
    answered_at: Nanoseconds | None = None
    """When ``status`` was answered."""
    silence: Silence | None = None
    """How it did not answer when it was polled last; None where it did."""
    error: str = ""
    """Why it did not."""
    ready: bool = False
    obstacles: str = ""
    status: ServiceStatus | None = None
    changes_per_second: float | None = None
    """Of a consumer: rows written a second between its last two answers; None while it does not answer."""
    lag_change: float | None = None
    """By how many seconds a reader's lag grows from one answer to the next, on average of the last few; else None.

    A low watermark moves in jumps, so the last two answers alone say nothing of the trend.
    """

    @property
    def state(self) -> str:
        """Return the state that its status names; but its condition where it is silent, or does not read, not ready."""
        stated = "" if self.status is None else self.status.state
        return self.condition if self.silence or not stated or (stated == "reading" and not self.ready) else stated

    @property
    def condition(self) -> str:
        """Return in a word or two how it was when it was polled last."""
        if self.polled_at is None:
            return "has not answered yet"
        return self.silence.value if self.silence else "ready" if self.ready else "not ready"

    @property
    def kind(self) -> str:
        """Return what it is, as far as it has said so."""
        match self.status:
            case None:
                return "unknown"
            case ConsumerAnswer():
                return "consumer"
            case BigtableReaderStatus():
                return "Bigtable reader"
            case SpannerReaderStatus():
                return "Spanner reader"


def polled(before: WatchedService, answer: StatusAnswer, now: Nanoseconds) -> WatchedService:
    """Return a service after an answer; rates are by the answer before it. ValueError where it is no status."""
    status = status_of(answer.status)
    rate = growth = None
    seconds = 0.0 if before.answered_at is None else (now - before.answered_at) / 1e9
    match before.status, status:
        case ConsumerAnswer() as old, ConsumerAnswer() if old.since == status.since and seconds > 0:
            rate = max(0, status.changes.written - old.changes.written) / seconds
        case ReaderStatus() as old, ReaderStatus() if None not in (old.lag_seconds, status.lag_seconds):
            latest = (status.lag_seconds or 0.0) - (old.lag_seconds or 0.0)
            growth = latest if before.lag_change is None else (1 - _NEWEST) * before.lag_change + _NEWEST * latest
    return WatchedService(
        name=before.name,
        address=before.address,
        polled_at=now,
        answered_at=now,
        ready=answer.ready,
        obstacles=answer.obstacles,
        status=status,
        changes_per_second=rate,
        lag_change=growth,
    )


def unanswered(before: WatchedService, silence: Silence, error: str, now: Nanoseconds) -> WatchedService:
    """Return a service that has not answered with a status: it keeps the one that it had."""
    return replace(
        before,
        polled_at=now,
        silence=silence,
        error=error,
        ready=False,
        obstacles="",
        changes_per_second=None,
        lag_change=None,
    )


def tables_of(services: Sequence[WatchedService]) -> Mapping[str, Sequence[TableStatus]]:
    """Return the tables of each consumer by the consumer's name, those in trouble first; of very many the first."""
    return {
        one.name: sorted(one.status.tables, key=lambda table: (not table.troubles, table.table))[:MOST_TABLES_SHOWN]
        for one in services
        if isinstance(one.status, ConsumerAnswer)
    }
