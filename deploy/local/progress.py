"""What a run shows while it goes: changes committed, published and applied, and the lag, from the services' metrics."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deploy.local.stack import Stack

_REFRESH: Final = timedelta(seconds=1)
_PLAIN_EVERY: Final = 5


class Progress:
    """Refreshed by a thread of its own: one live table on a terminal, a plain line now and then elsewhere."""

    def __init__(self, console: Console, stack: Stack, committed: Callable[[], int]) -> None:
        self._console = console
        self._stack = stack
        self._committed = committed
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if not self._console.is_terminal:
            rounds = 0
            while not self._over.wait(_REFRESH.total_seconds()):
                rounds += 1
                if rounds % _PLAIN_EVERY == 0:
                    self._console.print(", ".join(f"{name} {value}" for name, value in self._figures()), soft_wrap=True)
            return
        with Live(self._table(), console=self._console, auto_refresh=False, transient=True) as live:
            while not self._over.wait(_REFRESH.total_seconds()):
                live.update(self._table(), refresh=True)

    def _figures(self) -> list[tuple[str, str]]:
        reader, committed = self._stack.reader.metrics(), self._committed()
        lag = reader.get("millrace_reader_lag_seconds")
        return [
            ("after", f"{time.monotonic() - self._began:.0f} s"),
            ("committed", f"{committed:,}"),
            ("published", f"{reader.get('millrace_published_changes_total', 0):,.0f}"),
            ("applied", f"{self._stack.applied:,}"),
            ("reader lag", "-" if lag is None else f"{lag:.1f} s"),
        ]

    def _table(self) -> Table:
        figures = self._figures()
        table = Table(*(name for name, _ in figures))
        table.add_row(*(value for _, value in figures))
        return table
