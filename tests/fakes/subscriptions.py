"""A topic's subscriptions in memory."""


class FakeSubscriptions:
    """A topic's subscriptions: in order, unless a test says what is wrong."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.checks = 0

    async def check(self) -> None:
        """Raise MisconfiguredError if what is published now would be discarded, or kept for too short a time."""
        self.checks += 1
        if self.error is not None:
            raise self.error
