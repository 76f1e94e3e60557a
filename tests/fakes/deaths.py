"""The Deaths port in memory."""


class FakeDeaths:
    """Keeps the promises of `Deaths`, unless ``unknown``."""

    def __init__(self) -> None:
        self.unknown = False
        self.over: dict[str, int] = {}

    def counted(self, message: str) -> int | None:
        return None if self.unknown else self.over.get(message, 0)

    def count(self, message: str, deaths: int) -> None:
        self.over[message] = deaths
        if not deaths:
            del self.over[message]
