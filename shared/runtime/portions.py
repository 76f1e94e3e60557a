"""Many items in portions that are bounded in bytes and in number."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def cut(
    items: Iterable[_Item], size: Callable[[_Item], int], most_bytes: int, most: int | None = None
) -> Iterator[list[_Item]]:
    """Yield the items in their order, as many at a time as fit; one that is larger than all that fits comes alone."""
    portion: list[_Item] = []
    total = 0
    for item in items:
        more = size(item)
        if portion and (len(portion) == most or total + more > most_bytes):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += more
    if portion:
        yield portion
