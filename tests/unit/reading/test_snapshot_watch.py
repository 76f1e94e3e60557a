"""What `snapshot --watch` of any reader writes: bars on a terminal, elsewhere only why nothing is read."""

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.contracts.errors import TransientError
from shared.reading.snapshot_watch import Hindrance, Shown, watch
from tests.fakes.terminal import Terminal

CLEAR = "\x1b[1F\x1b[J"


class Polled:
    """Snapshots as the polls find them, one after the other; then they are over."""

    def __init__(self, *rows: int, hindrance: Hindrance | None = None) -> None:
        """``rows``: how many rows are read at each poll; a negative number: the poll is not answered."""
        self._rows = iter(rows)
        self._hindrance = hindrance

    async def __call__(self) -> tuple[Shown, Hindrance | None]:
        rows = next(self._rows, None)
        if rows is None:
            return [a_snapshot(5_000, state="DONE", ranges_left=0)], self._hindrance
        if rows < 0:
            raise TransientError("UNAVAILABLE")
        return [a_snapshot(rows)], self._hindrance


def a_snapshot(rows: int, **more: Any) -> Mapping[str, Any]:
    shown = {"table": "t", "keys": None, "state": "READING", "rows": rows, "ranges": 3, "ranges_left": 2}
    return {**shown, "never_announced": None, **more}


async def test_on_a_terminal_each_poll_draws_over_the_one_before_and_one_without_an_answer_draws_nothing() -> None:
    out = Terminal()
    shown = await watch(Polled(1_000, 3_000, -1), out)
    assert shown == [a_snapshot(5_000, state="DONE", ranges_left=0)]
    assert out.getvalue() == (
        f"t [{'#' * 10:<30}] reading, 1,000 rows, 1 of 3 key ranges, 0 rows/s\n"
        f"{CLEAR}t [{'#' * 10:<30}] reading, 3,000 rows, 1 of 3 key ranges, 2,000 rows/s\n"
        f"{CLEAR}t [{'#' * 30}] done, 5,000 rows, 3 of 3 key ranges\n{CLEAR}"
    )


@pytest.mark.parametrize("terminal", [True, False])
async def test_what_is_in_the_way_is_shown_after_thirty_seconds_for_as_long_as_it_is_and_logged_once(
    terminal: bool,
) -> None:
    out = Terminal() if terminal else io.StringIO()
    with capture_logs() as logs:
        watching = asyncio.create_task(watch(Polled(*[1] * 90, hindrance=Hindrance("no reader", "start one")), out))
        await asyncio.sleep(29.5)
        assert (logs, "no reader" in out.getvalue()) == ([], False)
        await asyncio.sleep(30)
        assert out.getvalue().endswith("no reader; start one\n") is terminal
        await watching
    assert [(line["event"], line["why"], line["fix"]) for line in logs] == (
        [] if terminal else [("snapshots_wait", "no reader", "start one")]
    )
    assert terminal or out.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
async def test_that_the_store_does_not_answer_is_shown_after_thirty_seconds_and_logged_once(terminal: bool) -> None:
    out = Terminal() if terminal else io.StringIO()
    with capture_logs() as logs:
        watching = asyncio.create_task(watch(Polled(*[1] * 10, *[-1] * 80), out))
        await asyncio.sleep(39.5)
        assert (logs, "UNAVAILABLE" in out.getvalue()) == ([], False)
        await asyncio.sleep(10)
        assert ("not known: UNAVAILABLE; check the network" in out.getvalue().rpartition("\x1b[J")[2]) is terminal
        assert [(line["event"], "UNAVAILABLE" in line["why"]) for line in logs] == (
            [] if terminal else [("snapshots_wait", True)]
        )
        await watching
    assert len(logs) == (0 if terminal else 1)
    assert terminal or out.getvalue() == ""
