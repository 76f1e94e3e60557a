"""How much chance a run tries: 20 seeds and a fifth of each property's examples, the same each time.

`make test-all` tries all, others each time.

The variable SEEDS sets it, in percent of all.
"""

import os

ALL_SEEDS = 100
SEEDS = int(os.environ.get("SEEDS", "20"))
"""How many seeds a test with random histories plays."""


def examples(count: int) -> int:
    """Return how many of the examples of a property are tried: no less than ten."""
    return max(min(count, 10), count * SEEDS // ALL_SEEDS)
