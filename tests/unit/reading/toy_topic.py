"""A topic in memory that confirms what it takes by itself, or by hand."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.contracts.change_batch import Change, Header
from tests.fakes.life import Life

HEADER = Header("//toy", "t", ("k",), ())


@dataclass
class ToyTopic:
    """The names of the changes that were published, some of them several times, and what waits for confirmation."""

    confirms: bool = True
    error: Exception | None = None
    """Why nothing can be published."""
    published: list[str] = field(default_factory=list)
    headers: list[Header] = field(default_factory=list)
    waiting: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    def confirm(self, *names: str) -> None:
        """Confirm what was published together and ends with one of these changes."""
        for name in names:
            self.waiting.pop(name).set_result(None)


class ToyPublisher:
    """One reader's way to the topic."""

    def __init__(self, topic: ToyTopic, life: Life | None = None, name: Callable[[str], str] = lambda key: key) -> None:
        """``name`` returns the name of a change from its key."""
        self._topic, self._life, self._name = topic, life or Life(), name

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]]) -> "asyncio.Future[None]":
        """Publish changes, or a header alone, which is confirmed at once."""
        self._life.step()
        if self._topic.error is not None:
            raise self._topic.error
        names = [self._name(change.key) for _ordering_key, change in changes]
        self._topic.headers.append(header)
        self._topic.published += names
        confirmation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if names and not self._topic.confirms:
            self._topic.waiting[names[-1]] = confirmation
        else:
            confirmation.set_result(None)
        return confirmation

    def hurry(self, seconds: float = 0.0) -> None:
        """Let nothing wait longer than it does."""

    async def close(self) -> None:
        """Have nothing that waits for room."""
