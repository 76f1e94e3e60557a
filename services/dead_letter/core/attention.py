"""What needs an operator, worst first, and for each the command that fixes it or shows more.

A command is made here, of a name in quotes: what a service answers is never handed out to be run.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.dead_letter.core.dead_letters import DeadLetterStats
from services.dead_letter.core.guidance import OF_OTHER_PROGRAMS
from services.dead_letter.core.statuses import (
    BigtableReaderStatus,
    ConsumerAnswer,
    PendingResync,
    ReaderStatus,
    Silence,
    SpannerReaderStatus,
    TableStatus,
    TableTrouble,
    WatchedService,
)
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

FAR_BEHIND: Final = 300.0
"""Seconds of lag from which on a reader needs attention."""
_STALLED: Final = 120.0
_SILENT_SOURCE: Final = 600.0
"""As the alert MillraceSourceSilent has it."""
_MODULES: Final = {
    "spanner-reader": "services.spanner_reader",
    "bigtable-reader": "services.bigtable_reader",
    "consumer": "services.cdc_consumer",
    "dead-letters": "services.dead_letter",
}
_DIAGNOSE: Final = "docs/how-to/diagnose-a-table.md"
_SILENT: Final[Mapping[Silence | None, str]] = {
    None: "check again in a few seconds: what does not answer then hangs, or its name does not resolve",
    Silence.HANGS: "its process is there and does nothing: inspect it with `ps -o pid,stat -p PID`. T is suspended: "
    "`kill -CONT PID`. Otherwise `kill -KILL PID`, or delete its pod, and start it; nothing is lost. "
    "Where there is no process, a firewall or a network policy drops what it is sent",
    Silence.REFUSES: "no process listens there: start it; if it has ended, its log ends with the cause and a code. "
    "If it does run, its HOST must let this service in, and CONSOLE_SERVICES have its address",
    Silence.UNREACHABLE: "correct its name or address in CONSOLE_SERVICES, or the network between this service and it",
    Silence.NO_STATUS: "see that CONSOLE_SERVICES has the address of a reader's or consumer's health port, and that it "
    "is of this version; if it is, its log names the cause",
}
"""What to do about a service that does not answer; None: its first answer is still to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Something that needs an operator."""

    urgent: bool
    """It does not get better by itself, or data may be lost."""
    what: str
    where: str
    why: str = ""
    since: str | None = None
    todo: str
    command: str | None = None
    """To be copied; None where a name in it could not be shown as it is."""


def command(*words: str, name: str | None = None) -> str | None:
    """Return a command line for a shell, at its end a name that a service gave.

    None where that would be read as an option, or holds what no terminal shows.
    """
    if name is None:
        return shlex.join(words)
    return shlex.join([*words, name]) if name.isprintable() and not name.startswith("-") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How a service's commands are started where they are shown: in a clone, or in the containers of images."""

    in_clone: bool = True
    directory: str | None = None
    """Where the settings and the log of each service are, as `NAME.env` and `NAME.log`."""

    def command(self, service: str, *words: str, name: str | None = None, of: str | None = None) -> str | None:
        """Return a command line of a service, which has the launcher's name; None as `command`.

        ``of``: what the service is called whose settings the command needs; this one's where it is a command of it.
        """
        start = ("./millrace", service) if self.in_clone else ("python", "-m", _MODULES[service])
        line = command(*start, *words, name=name)
        of = "dead_letter" if service == "dead-letters" else of
        if line is None or of is None or self.directory is None:
            return line
        return f"({command('.', f'{self.directory}/{of}.env')}; {line})"

    def prose(self, text: str) -> str:
        """Return what a service says with its commands as they are started here."""
        if self.in_clone:
            for name, module in _MODULES.items():
                text = text.replace(f"python -m {module} ", f"./millrace {name} ")
        return text

    def log_of(self, name: str) -> str | None:
        """Return a command line that shows the end of a service's log; None where it is not known."""
        return None if self.directory is None else command("tail", "-n", "20", f"{self.directory}/{name}.log")

    @property
    def where(self) -> str:
        """Return where the commands run."""
        if self.directory is not None:
            return "Commands run in the root of the clone; each loads the settings that it needs."
        if self.in_clone:
            return "Commands run in the root of the clone, where that service's settings are set."
        return "Commands run in the container of that service."


def needs_attention(
    services: Sequence[WatchedService], stats: DeadLetterStats | None, launcher: Launcher
) -> Sequence[Attention]:
    """Return what needs an operator, the urgent first."""
    readers: dict[str, list[str]] = {}
    for one in services:
        if isinstance(one.status, ReaderStatus):
            readers.setdefault(_launched(one), []).append(one.name)
    found = [item for service in services for item in _of_service(service, readers, launcher)]
    found += _of_sources(services, launcher)
    found += _of_backlogs(services)
    if stats is not None:
        found += _of_dead_letters(stats, launcher)
    return sorted(found, key=lambda item: not item.urgent)


def headline(items: Sequence[Attention]) -> str:
    """Return how much needs attention."""
    if not items:
        return "nothing needs attention"
    return "1 thing needs attention" if len(items) == 1 else f"{len(items)} things need attention"


def _of_dead_letters(stats: DeadLetterStats, launcher: Launcher) -> Iterator[Attention]:
    """Yield what others have published, which no replay helps, apart from the changes that could not be applied."""
    foreign = {reason: count for reason, count in stats.by_reason.items() if reason in OF_OTHER_PROGRAMS}
    if count := sum(foreign.values()):
        options = [word for reason in Reason if reason in foreign for word in ("--reason", reason.value)]
        yield Attention(
            urgent=False,
            what=f"{count:,} message{' that is no change batch' if count == 1 else 's that are no change batches'}",
            where="dead letters",
            why="another program publishes to the topic; a replay cannot help",
            since=_oldest(stats, foreign),
            todo="open Dead letters: find the program by the attributes of one and stop it, then discard them",
            command=launcher.command("dead-letters", "discard", *options, "--why", "published by another program"),
        )
    changes = {reason: count for reason, count in stats.by_reason.items() if reason not in OF_OTHER_PROGRAMS}
    if count := sum(changes.values()):
        yield Attention(
            urgent=False,
            what=f"{count:,} open dead letter{'' if count == 1 else 's'}",
            where="dead letters",
            why="changes that could not be applied; the rows in BigQuery are older than at the source",
            since=_oldest(stats, changes),
            todo="open Dead letters: fix the cause of a group, then replay it",
            command=launcher.command("dead-letters", "groups"),
        )


def _oldest(stats: DeadLetterStats, reasons: Collection[Reason]) -> str:
    return format_timestamp(min(stats.oldest_by_reason[reason] for reason in reasons))


def _of_backlogs(services: Sequence[WatchedService]) -> Iterator[Attention]:
    backlogs = {
        backlog.subscription: backlog
        for service in services
        if isinstance(service.status, ReaderStatus)
        for backlog in service.status.backlogs  # the readers of a topic all know them
    }
    for name, backlog in sorted(backlogs.items()):
        if backlog.left_seconds is not None:
            hours = backlog.left_seconds / 3600
            yield Attention(
                urgent=True,
                what=f"keeps its oldest message for {hours:,.1f} more hours",
                where=f"subscription {name.rpartition('/')[2]}",
                why=f"it is not acked, and is deleted when it is {backlog.retention_seconds / 3600:,.0f} hours old",
                todo="start what acks it: the consumer, or the dead-letter service for dead letters. If that takes "
                "longer, the command keeps for 31 days what is still there. Delete a subscription that is not used",
                command=command(
                    *("gcloud", "pubsub", "subscriptions", "update", "--message-retention-duration=31d"), name=name
                ),
            )


def _of_service(
    service: WatchedService, readers: Mapping[str, Sequence[str]], launcher: Launcher
) -> Iterator[Attention]:
    if service.polled_at is None or service.silence:
        yield Attention(
            urgent=True,
            what=service.condition,
            where=service.name,
            why=service.error,
            since=None if service.answered_at is None else format_timestamp(service.answered_at),
            todo=_SILENT[service.silence],
            command=(launcher.log_of(service.name) if service.silence is Silence.REFUSES else None)
            or command("curl", "--max-time", "5", f"{service.address}/readyz"),
        )
        return
    if not service.ready:
        yield Attention(
            urgent=bool(service.obstacles),
            what="is not ready",
            where=service.name,
            why=service.obstacles,
            since=service.status.low_watermark if isinstance(service.status, ReaderStatus) else None,
            todo="wait if it has just started. A call fails: what it calls is unavailable, hangs, or is not reached, "
            "and a restart of this service does not help. Otherwise its log and its doctor name the cause",
            command=launcher.command(_launched(service), "doctor", of=service.name),
        )
    match service.status:
        case ConsumerAnswer() as consumer:
            yield from _of_consumer(service, consumer, readers, launcher)
        case ReaderStatus() as reader:
            yield from _of_reader(service, reader, launcher)
        case None:
            pass


def _of_consumer(
    service: WatchedService, consumer: ConsumerAnswer, readers: Mapping[str, Sequence[str]], launcher: Launcher
) -> Iterator[Attention]:
    if consumer.state == "makes no progress":
        yield Attention(
            urgent=True,
            what="makes no progress",
            where=service.name,
            todo="read the end of its log, then restart it: what it has not acked comes again",
            command=launcher.command("consumer", "doctor", of=service.name),
        )
    if consumer.labels.error:
        yield Attention(
            urgent=False,
            what="cannot read all tables of its dataset",
            where=service.name,
            why=consumer.labels.error,
            todo="grant what the message names; until then states below may be old",
            command=launcher.command("consumer", "doctor", of=service.name),
        )
    for table in consumer.tables:
        for trouble in table.troubles:
            yield _of_table(service, table, trouble, readers, launcher)


def _of_sources(services: Sequence[WatchedService], launcher: Launcher) -> Iterator[Attention]:
    """Yield the sources from which no heartbeat has come for long, whether a reader of them is polled or not."""
    if any(isinstance(one.status, ReaderStatus) and one.status.state == "paused" for one in services):
        return
    for service in services:
        if isinstance(service.status, ConsumerAnswer) and service.answered_at is not None and not service.silence:
            for source, until in sorted(service.status.sources.items()):
                seconds = _seconds_since(until, service.answered_at)
                if seconds > _SILENT_SOURCE:
                    reader = "bigtable-reader" if source.startswith("//bigtable") else "spanner-reader"
                    yield Attention(
                        urgent=True,
                        what=f"no heartbeat of {source} for {seconds / 60:,.0f} minutes",
                        where=service.name,
                        why="its changes do not arrive: no reader of it runs, or its partitions stand still",
                        since=until,
                        todo="start its reader; if one runs, its status says how far it is. A source that is no longer "
                        "read is forgotten when the consumer is restarted",
                        command=launcher.command(reader, "status"),
                    )


def _seconds_since(time: str | None, now: Nanoseconds) -> float:
    try:
        return 0.0 if time is None else (now - parse_timestamp(time)) / 1e9
    except ValueError:
        return 0.0


def _of_table(
    service: WatchedService,
    table: TableStatus,
    trouble: TableTrouble,
    readers: Mapping[str, Sequence[str]],
    launcher: Launcher,
) -> Attention:
    snapshot = launcher.command("spanner-reader", "snapshot", name=table.table, of=_only(readers, "spanner-reader"))
    if "bigtable-reader" in readers:  # which one it comes from is not known where there are both
        of = _only(readers, "bigtable-reader")
        snapshot = launcher.command("bigtable-reader", "snapshot", of=of) if len(readers) == 1 else None
    todo, line = {
        "deferred": (
            "do what the message says. Its messages come again within ten minutes, and nothing is lost until then",
            launcher.command("consumer", "doctor", of=service.name),
        ),
        "refused": (
            "its changes become dead letters: fix what the message says, then replay them under Dead letters",
            launcher.command("dead-letters", "groups", "--table", name=table.table),
        ),
        "pending resync": ("take another snapshot of its source table", snapshot),
        "dropped": (
            "if that was not meant: its next change makes it again, and then take a snapshot of its source table",
            snapshot,
        ),
    }.get(trouble.state, (f"see {_DIAGNOSE}", launcher.command("consumer", "status", of=service.name)))
    return Attention(
        urgent=True,
        what=f"table {table.table} is {trouble.state}",
        where=service.name,
        why=trouble.why,
        since=trouble.since,
        todo=todo,
        command=line,
    )


def _only(readers: Mapping[str, Sequence[str]], kind: str) -> str | None:
    """Return what the reader of a kind is called; None unless there is one."""
    names = readers.get(kind, ())
    return names[0] if len(names) == 1 else None


def _of_reader(service: WatchedService, reader: ReaderStatus, launcher: Launcher) -> Iterator[Attention]:
    for table in reader.pending_resync:
        yield _resync(service, table, launcher)
    if reader.state == "paused":
        yield Attention(
            urgent=False,
            what="is paused",
            where=service.name,
            why="nothing is read until it is resumed, and the source keeps changes for a limited time",
            since=reader.low_watermark,
            todo="resume it when what it was paused for is over",
            command=launcher.command(_launched(service), "resume", of=service.name),
        )
    elif service.obstacles:
        pass  # why it reads nothing is said already, and whatever follows from it ends with that
    elif reader.lag_seconds is not None and reader.lag_seconds >= FAR_BEHIND:
        falling = service.lag_change is not None and service.lag_change < 0
        yield Attention(
            urgent=not falling,
            what="is far behind, and catches up" if falling else "is far behind",
            where=service.name,
            why="changes that are older than the source keeps them are lost",
            since=reader.low_watermark,
            todo="its status says how long the source keeps changes; "
            + ("more readers of it share the work" if service.ready else "why it is not ready comes first"),
            command=launcher.command(_launched(service), "status", of=service.name),
        )
    elif isinstance(reader, BigtableReaderStatus) and (reader.low_watermark_stalled_seconds or 0.0) >= _STALLED:
        yield Attention(
            urgent=True,
            what="has a low watermark that stands still",
            where=service.name,
            since=reader.low_watermark,
            todo="its status names the key ranges that no reader reads",
            command=launcher.command(_launched(service), "status", of=service.name),
        )
    for paused in reader.paused_tables if isinstance(reader, SpannerReaderStatus) else ():
        yield Attention(
            urgent=False,
            what=f"table {paused.table} is paused",
            where=service.name,
            why="its changes are dropped",
            since=paused.since,
            todo="resume it, and take a snapshot then",
            command=launcher.command(_launched(service), "resume", name=paused.table, of=service.name),
        )


def _resync(service: WatchedService, table: PendingResync, launcher: Launcher) -> Attention:
    kinds = ", ".join(cause.kind.replace("_", " ") for cause in table.why)
    name = table.table if isinstance(service.status, SpannerReaderStatus) else None
    return Attention(
        urgent=True,
        what=f"table {table.table} is pending resync",
        where=service.name,
        why=kinds,
        since=table.since,
        todo=f"the reader says: {launcher.prose(table.fix)}" if table.fix else "take a snapshot of it",
        command=launcher.command(_launched(service), "snapshot", name=name, of=service.name),
    )


def _launched(service: WatchedService) -> str:
    """Return what the launcher calls a service."""
    match service.status:
        case ConsumerAnswer():
            return "consumer"
        case BigtableReaderStatus():
            return "bigtable-reader"
        case _:
            return "spanner-reader"
