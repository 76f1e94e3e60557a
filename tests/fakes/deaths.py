"""The Deaths port in memory."""

from collections.abc import Sequence


class FakeDeaths:
    """Keeps the promises of `Deaths`, unless ``unknown``."""

    def __init__(self) -> None:
        self.unknown = False
        self.over: dict[str, int] = {}

    def counted(self, messages: Sequence[str]) -> Sequence[int] | None:
        return None if self.unknown else [self.over.get(message, 0) for message in messages]

    def count(self, messages: Sequence[str], deaths: int) -> None:
        for message in messages:
            self.over[message] = deaths
            if not deaths:
                del self.over[message]
