"""Changes on their way to the topic: counted and confirmed once Pub/Sub has them; an error ends the reader."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from shared.contracts.change_batch import Change, Header
from shared.reading.byte_budget import ByteBudget
from shared.reading.metrics import ReaderMetrics


class ChangePublisher(Protocol):
    """Publishes change records, packed with what others publish."""

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]]) -> "asyncio.Future[None]":
        """Take changes, each with its ordering key, once there is room; the future resolves when all are confirmed.

        MisconfiguredError, here or in the future, if nothing can be published until someone acts. No changes at all
        publish the header, which announces a table or a column list.
        """

    def hurry(self, seconds: float = 0.0) -> None:
        """Have what was taken, and what is taken for so long, confirmed soon: it may wait to be published with more."""

    async def close(self) -> None:
        """Publish what was taken, and end: return when Pub/Sub has confirmed it, or will not."""


class ConfirmedPublishing:
    """Publishes changes, and moves progress only when they are confirmed."""

    def __init__(
        self,
        publisher: ChangePublisher,
        metrics: ReaderMetrics,
        fail: Callable[[BaseException | None], None],
        budget: ByteBudget | None = None,
    ) -> None:
        """``fail`` ends the reader with an error; None is no error. ``budget``: of what waits to be published."""
        self.fail = fail
        self.budget = budget or ByteBudget()
        self._publisher = publisher
        self._metrics = metrics

    async def announce(self, header: Header) -> None:
        """Publish a header without changes, so that its table comes to exist though it may be empty."""
        await self.publish(header, (), lambda: None)

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]], confirm: Callable[[], None]) -> None:
        """Publish changes once there is room for them; ``confirm`` is called when all are confirmed."""
        self.when_done(await self._publisher.publish(header, changes), confirm, len(changes))

    def when_done(self, publishing: "asyncio.Future[None]", confirm: Callable[[], None], changes: int = 0) -> None:
        """Call ``confirm`` when a publication succeeds; end the reader when it fails."""
        publishing.add_done_callback(partial(self._on_done, confirm, changes))

    def _on_done(self, confirm: Callable[[], None], changes: int, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self.fail(done.exception())
            return
        if changes:
            self._metrics.published(changes)
        confirm()


class Countdown:
    """Calls something once it is called so often itself: by the last of several publications, say."""

    def __init__(self, left: int, call: Callable[[], None]) -> None:
        self._left = left
        self._call = call

    def __call__(self) -> None:
        """Count."""
        self._left -= 1
        if not self._left:
            self._call()
