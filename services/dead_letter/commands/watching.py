"""The command `watch`: the first page of the console in a terminal."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.text import Text

from services.dead_letter.app.decisions import NotDoneError
from services.dead_letter.app.service_poller import EVERY
from services.dead_letter.commands.output import console, moment, print_line, printable
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.core.attention import Attention, headline, needs_attention
from services.dead_letter.core.dead_letters import DeadLetterStats, State
from services.dead_letter.core.statuses import ReaderStatus, WatchedService, tables_of
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp


def watch(tools: CommandTools) -> None:
    """Show it again and again on a terminal, else once; NotDoneError then where something is urgent."""
    if tools.poller is None:
        raise MisconfiguredError(
            "no-services-to-watch", "set CONSOLE_SERVICES: NAME=http://HOST:PORT of each service, with commas between"
        )
    with tools.stopping() as stop, tools.poller.polling(stop):
        if not sys.stdout.isatty():
            items, lines = _shown(tools)
            for line in lines:
                print_line(line)
            if urgent := sum(item.urgent for item in items):
                raise NotDoneError(f"{urgent} urgent: see above")
            return
        with Live(console=console(), screen=True, auto_refresh=False) as live:
            while not stop.requested:
                _items, lines = _shown(tools)
                live.update(_fitting(lines, live.console), refresh=True)
                stop.wait(EVERY)


def _fitting(lines: Sequence[str], screen: Console) -> Text:
    """Return the first lines that a terminal holds, and of those that it does not how many there are."""
    rows = list(Text("\n".join(map(printable, lines))).wrap(screen, screen.width))
    if len(rows) > screen.height:
        left = len(rows) - screen.height + 1
        more = Text(f"{left} more lines: enlarge the window, or print them once with `| cat`")
        more.truncate(screen.width)
        rows = [*rows[: screen.height - 1], more]
    return Text("\n").join(rows)


def _stats(store: Callable[[], AbstractContextManager[DeadLetterStore]]) -> DeadLetterStats | None:
    """Return what the store holds; None where it is not to be had here, which hides no service."""
    try:
        with store() as opened:
            return opened.stats()
    except (MisconfiguredError, TransientError):
        return None


def _shown(tools: CommandTools) -> tuple[Sequence[Attention], list[str]]:
    services, stats = [] if tools.poller is None else tools.poller.services(), _stats(tools.store)
    items, store = needs_attention(services, stats, tools.launcher), [] if stats else ["", "the store: not to be had"]
    return items, [*_attention(items), "", *_services(services, tools.clock.now()), *_dead_letters(stats), *store]


def _attention(items: Sequence[Attention]) -> Iterator[str]:
    yield headline(items)
    for item in items:
        yield f"{'! ' if item.urgent else '- '}{item.where}: {item.what}" + (
            f", since {moment(item.since)}" if item.since else ""
        )
        if item.why:
            yield f"    {item.why}"
        yield f"    do: {item.todo}"
        if item.command:
            yield f"    $ {item.command}"


def _services(services: Sequence[WatchedService], now: Nanoseconds) -> Iterator[str]:
    for one in services:
        if isinstance(one.status, ReaderStatus):
            partitions = [f"{count} {name.lower()}" for name, count in one.status.partitions.items() if count]
            published = moment(one.status.low_watermark) or "unknown"
            yield (
                f"{one.name}: {one.state}, {_seconds(one.status.lag_seconds)} behind{_age(one, now)}; published up to "
                f"{published}; partitions: {', '.join(partitions) or 'none'}"
            )
    for name, tables in tables_of(services).items():
        consumer = next(one for one in services if one.name == name)
        rate = consumer.changes_per_second
        yield f"{name}: {'unknown' if rate is None else f'{rate:.0f}'} rows written a second{_age(consumer, now)}"
        for table in tables:
            to_topic, to_bigquery = table.lag_seconds.commit_to_published, table.lag_seconds.published_to_applied
            yield (
                f"  {table.table}: {table.state}, {_seconds(to_topic)} to the topic, "
                f"{_seconds(to_bigquery)} to BigQuery"
            )

    for one in services:
        yield f"service {one.name}: {one.condition}, {one.kind}, {one.address}{_age(one, now)}"


def _dead_letters(stats: DeadLetterStats | None) -> Iterator[str]:
    if stats is not None:
        counts = [f"{stats.by_state.get(state, 0)} {state.value}" for state in State]
        oldest = "" if stats.oldest_open is None else f"; oldest open: {moment(format_timestamp(stats.oldest_open))}"
        yield f"dead letters: {', '.join(counts)}{oldest}"


def _age(service: WatchedService, now: Nanoseconds) -> str:
    """Return how old what is shown of a service is; empty where it answers."""
    if service.silence is None or service.answered_at is None:
        return ""
    return f" {timedelta(seconds=(now - service.answered_at) // 1_000_000_000)} ago, by its last answer"


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f} s"
