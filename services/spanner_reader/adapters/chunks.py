"""Values cut into chunks by ExecuteStreamingSql, put together again.

Source of the rules: Spanner, PartialResultSet.chunked_value: strings are concatenated; lists are concatenated, and
if the last element of the first and the first of the second are both strings or both lists, these are merged in turn.
Null, booleans and numbers are never cut.
"""

from typing import Any


class ChunkedValue:
    """A value that arrives in chunks. Pieces of a long text are joined once, at the end."""

    def __init__(self) -> None:
        self._empty = True
        self._cut: dict[tuple[int, int], tuple[list[Any], int, list[str]]] = {}
        self._root: list[Any] = []

    @property
    def started(self) -> bool:
        """Tell whether a chunk has been added."""
        return not self._empty

    def add(self, chunk: Any) -> None:
        """Add the next chunk: text, a list of nested values, or what is never cut."""
        # The value is held as the only element of a list, so that its chunks follow the one rule for lists.
        self._empty = False
        into, rest = self._root, [chunk]
        while rest:
            head, tail = rest[0], rest[1:]
            last = into[-1] if into else None
            if isinstance(last, list) and isinstance(head, list) and into:
                into.extend(tail)
                into, rest = last, list(head)
            elif isinstance(last, str) and isinstance(head, str) and into:
                place = (id(into), len(into) - 1)
                self._cut.setdefault(place, (into, len(into) - 1, [last]))[2].append(head)
                into.extend(tail)
                return
            else:
                into.extend(rest)
                return

    def take(self) -> Any:
        """Return the whole value and be empty again."""
        for into, index, pieces in self._cut.values():
            into[index] = "".join(pieces)
        (value,) = self._root
        self._root = []
        self._cut = {}
        self._empty = True
        return value
