"""The DurableBytes port in memory."""


class FakeDurableBytes:
    """Keeps the promises of `DurableBytes`."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        self.data = data
