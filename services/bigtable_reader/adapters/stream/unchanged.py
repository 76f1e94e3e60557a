"""For how long values have not changed: a value without a writer is found by that, and by no other clock."""

from collections.abc import Callable, Mapping


class Unchanged:
    """Since when each of some values is what it is, as far as was seen, by this machine's monotonic clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: dict[str, tuple[bytes, float]] = {}

    def observe(self, values: Mapping[str, bytes]) -> None:
        """Take all values as they are now; those that are no longer there are forgotten."""
        at, before = self._monotonic(), self._since
        self._since = {
            name: before[name] if name in before and before[name][0] == what else (what, at)
            for name, what in values.items()
        }

    def stood(self, name: str, what: bytes | None = None) -> float:
        """Return for how many seconds a value has stood; 0 where it is not known, or was seen last as not ``what``."""
        if name not in self._since:
            return 0.0
        seen, since = self._since[name]
        return self._monotonic() - since if what in (None, seen) else 0.0
