"""Replays over HTTP: bounded in number and in time, so that each answers at its end."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from fastapi import APIRouter

from services.dead_letter.app.replay.replay import Outcome, ReplayOrder, ReportProgress, replay_document, results_of
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.documents import Document
from services.dead_letter.web import answers
from services.dead_letter.web.parameters import Replaying
from services.dead_letter.web.refusals import Answer, RefusedError, documented
from services.dead_letter.web.routes import Who
from services.dead_letter.web.tools import REPLAYS_AT_ONCE, WebTools
from shared.runtime.stop import Stop


def add_replaying(router: APIRouter, tools: WebTools) -> None:
    """Add the operation that publishes dead letters again."""

    @router.post(
        "/replays", response_model=answers.Replayed, responses=documented(404, 413, 429), operation_id="replay"
    )
    def replay(body: Replaying, who: Who) -> Answer:
        """Publish open dead letters again, by table, key, then sequence; without execute only say what would be sent.

        It ends when `limit` dead letters are sent, or after a minute with `stopped`: ask again, and it goes on. What is
        not sent stays open, and nothing is sent twice at once.
        """
        assert who is not None, "a change needs a name"
        if not tools.limits.replays.acquire(blocking=False):
            message = f"{REPLAYS_AT_ONCE} replays are under way here already: try again in a moment"
            raise RefusedError(429, message, headers={"Retry-After": "5"})
        try:
            return _replayed(tools, body, who)
        finally:
            tools.limits.replays.release()


def _replayed(tools: WebTools, body: Replaying, who: str) -> Answer:
    selection = body.dead_letters.chosen(tools.store, tools.clock.now(), State.OPEN)
    matched = tools.store.count(selection)
    order = ReplayOrder(
        selection=selection, who=who, execute=body.execute, force=body.force, rate=body.rate, limit=body.limit
    )
    with _bounded(tools.stop, tools.limits.longest) as stop:
        return Answer({**run_replay(tools, order, stop), "matched": matched})


def run_replay(
    tools: WebTools, order: ReplayOrder, stop: Stop, report: ReportProgress = lambda _so_far: None
) -> Document:
    """Run a replay to its end, or until asked to stop, and return how it went."""
    began = time.monotonic()
    counted: Counter[str] = Counter()

    def count(so_far: Outcome) -> None:
        if order.execute:
            new = results_of(so_far) - counted
            counted.update(new)
            tools.metrics.replayed(new)
        report(so_far)

    with tools.replay.opened(tools.store, tools.clock, stop, execute=order.execute) as replay:
        outcome = replay.run(order, count)
    count(outcome)
    return replay_document(outcome, time.monotonic() - began)


@contextmanager
def _bounded(stop: Stop, longest: timedelta) -> Iterator[Stop]:
    """Yield a stop that is requested with another one, or when it has taken too long."""
    own = Stop()
    timer = threading.Timer(longest.total_seconds(), own.request)
    timer.daemon = True
    with stop.calling(own.request):
        timer.start()
        try:
            yield own
        finally:
            timer.cancel()
