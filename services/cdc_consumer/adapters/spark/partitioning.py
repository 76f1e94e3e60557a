"""Which number Spark sends to which task when it partitions by a column of integers.

Spark takes Murmur3 of the number (`org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt`, seed 42) modulo the tasks. If
it took something else, tasks would be loaded unevenly; what has one number would still go to one task.
"""

from typing import Final

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42


def partition_of(number: int, tasks: int) -> int:
    """Return which of so many tasks gets a number from 0 to 2^31 - 1."""
    mixed = _rotated(number * 0xCC9E2D51, 15) * 0x1B873593
    hashed = _rotated(_SEED ^ (mixed & _MASK), 13) * 5 + 0xE6546B64
    hashed = (hashed ^ 4) & _MASK  # bytes hashed
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    hashed ^= hashed >> 16
    return (hashed - (hashed >> 31 << 32)) % tasks  # of a signed integer


def numbers_for(tasks: int) -> tuple[int, ...]:
    """Return for each task the smallest number that it gets."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(partition_of(number, tasks), number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
