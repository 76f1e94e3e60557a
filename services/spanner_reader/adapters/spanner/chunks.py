"""Values from the wire: those that ExecuteStreamingSql or StreamingRead cut into chunks are put together again.

Source of the rules: Spanner, PartialResultSet.chunked_value: strings are concatenated; lists are concatenated, and
if the last element of the first and the first of the second are both strings or both lists, these are merged in turn.
Null, booleans and numbers are never cut.
"""

from typing import Any

from google.protobuf.struct_pb2 import ListValue, Value

from shared.contracts.errors import TransientError


def from_wire(values: ListValue) -> list[Any]:
    """Return wire values as Python's: text, bool, float, None, lists of those."""
    return [value_from_wire(value) for value in values.values]


def value_from_wire(value: Value) -> Any:
    """Return a wire value as Python's."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return from_wire(value.list_value)
    return None if kind in (None, "null_value") else getattr(value, kind)


class ChunkedValue:
    """A value that arrives in chunks. Pieces of a long text are joined once, at the end."""

    def __init__(self) -> None:
        self._empty = True
        self._cut: dict[tuple[int, int], tuple[list[Any], int, list[str]]] = {}
        self._root: list[Any] = []

    @property
    def started(self) -> bool:
        """Return whether a chunk has been added."""
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
        for into, index, parts in self._cut.values():
            into[index] = "".join(parts)
        (value,) = self._root
        self._root = []
        self._cut = {}
        self._empty = True
        return value


class RowValues:
    """Values that come one after the other, row by row, from responses that may cut one anywhere."""

    def __init__(self, width: int) -> None:
        """Take how many columns a row has."""
        self._width = width
        self._chunks = ChunkedValue()
        self._values: list[Any] = []

    def rows(self, response: Any) -> list[list[Any]]:
        """Take the next PartialResultSet; return the rows that it completes."""
        values, width = self._values, self._width
        incoming = iter(response.values)
        if self._chunks.started:
            for value in incoming:
                self._chunks.add(value_from_wire(value))
                if not (response.chunked_value and len(response.values) == 1):
                    values.append(self._chunks.take())
                break
        values += map(value_from_wire, incoming)
        if response.chunked_value and not self._chunks.started:
            self._chunks.add(values.pop())
        whole = len(values) - len(values) % width
        self._values = values[whole:]
        return [values[start : start + width] for start in range(0, whole, width)]

    def end(self) -> None:
        """Check that no row was left in pieces: a stream cut off without an error is not a complete one."""
        if self._values or self._chunks.started:
            raise TransientError("a result ended in the middle of a row")
