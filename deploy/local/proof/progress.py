"""What a run shows while it goes: changes committed, published and applied, and the lag, from the services' metrics."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deploy.local.proof.sides import Side

_REFRESH: Final = timedelta(seconds=1)
_PLAIN_EVERY: Final = 5


class Progress:
    """Refreshed by a thread of its own: one live table on a terminal, a plain line now and then elsewhere."""

    def __init__(self, console: Console, sides: Sequence[Side], left: Callable[[], int]) -> None:
        """Show how far the changes of all sides have come; ``left`` returns how many are to be applied."""
        self._console = console
        self._sides = sides
        self._left = left
        self.waits_for = ""
        """What has to come before the run goes on; shown beside the numbers, which may stand still meanwhile."""
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if not self._console.is_terminal:
            rounds = 0
            while not self._over.wait(_REFRESH.total_seconds()):
                rounds += 1
                if rounds % _PLAIN_EVERY == 0:
                    self._console.print(self._line(), soft_wrap=True)
            return
        with Live(self._table(), console=self._console, auto_refresh=False, transient=True) as live:
            while not self._over.wait(_REFRESH.total_seconds()):
                live.update(self._table(), refresh=True)

    def _figures(self) -> list[tuple[str, str, str, str, str]]:
        """Return of each database its name, what of a snapshot is read, committed, published, and how far behind."""
        figures = []
        for one in (each for side in self._sides for each in side.figures()):
            behind = "-" if one.behind is None or math.isnan(one.behind) else f"{one.behind:.1f} s"
            snapshot = f"{min(one.snapshot, one.before):,} of {one.before:,}" if one.before else ""
            figures.append((one.name, snapshot, f"{one.committed:,}", f"{one.published:,}", behind))
        return figures

    def _line(self) -> str:
        sources = "; ".join(
            f"{name} {f'snapshot {snapshot}, ' if snapshot else ''}{committed} committed, {published} published "
            f"({behind} behind)"
            for name, snapshot, committed, published, behind in self._figures()
        )
        return f"{self._summary()}: {sources}"

    def _summary(self) -> str:
        waits_for = f", waiting for {self.waits_for}" if self.waits_for else ""
        return f"after {time.monotonic() - self._began:3.0f} s, {self._left():,} to be applied{waits_for}"

    def _table(self) -> Table:
        table = Table("source", "snapshot", "committed", "published", "reader behind", caption=self._summary())
        for row in self._figures():
            table.add_row(*row)
        return table
