"""The Kept port in memory."""


class FakeKept:
    """Keeps the promises of `Kept`."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        self.data = data
