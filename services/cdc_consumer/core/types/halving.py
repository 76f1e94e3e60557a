"""Find the few rows that a vectorised step cannot take, without leaving the vectorised path for the others."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

_FEW: Final = 32
"""From so few rows on, the exact way one by one costs no more than another round of halving."""


def by_halves(
    start: int, stop: int, fast: Callable[[int, int], T | None], exact: Callable[[int, int], T]
) -> Iterator[T]:
    """Yield pieces that together cover the rows ``start`` to ``stop``, in order.

    ``fast`` takes a range of rows whole or refuses it (None); a range that it refuses is halved, so that one bad row
    costs a few more calls and not one call a row; what is left at the end goes ``exact``.
    """
    piece = fast(start, stop)
    if piece is not None:
        yield piece
    elif stop - start <= _FEW:
        yield exact(start, stop)
    else:
        middle = (start + stop) // 2
        yield from by_halves(start, middle, fast, exact)
        yield from by_halves(middle, stop, fast, exact)
