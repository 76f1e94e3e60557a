"""The CrashCounts port in memory."""

from collections.abc import Sequence


class FakeCrashCounts:
    """Keeps the promises of `CrashCounts`, unless ``unknown``."""

    def __init__(self) -> None:
        self.unknown = False
        self.over: dict[str, int] = {}

    def read_counts(self, messages: Sequence[str]) -> Sequence[int] | None:
        return None if self.unknown else [self.over.get(message, 0) for message in messages]

    def set_counts(self, messages: Sequence[str], crashes: int) -> None:
        for message in messages:
            self.over[message] = crashes
            if not crashes:
                del self.over[message]
