"""What a change costs a reader's publisher by the number of ordering keys, over real sockets.

The same changes at the same rate, of 5 to 10,000 tables of 16 ordering keys each: the more keys, the fewer changes are
in a message, and each request has the messages of one key. How long half of all changes take is a test in virtual time.
"""

from typing import Final

from tests.benchmarks.backlog import pack
from tests.benchmarks.pipelines import PROJECT, Platform
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import Workload

_RATE: Final = 2_000
_TABLES: Final = (5, 100, 1_000, 10_000)
_BUCKETS: Final = 16


def measure_keys(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Publish for so many seconds with each number of tables; return CPU for each change."""
    found = []
    for number in _TABLES:
        costs, tables = [], [f"t{each:05}" for each in range(number)]
        for run in range(1, sizes.runs + 1):
            records = Workload(sizes.keys, seed=run, tables=tables).records(_RATE * sizes.seconds)
            name = f"keys-{number}-{run}"
            backlog = pack(platform.pubsub, PROJECT, name, records, _RATE, platform.processes.stop, tables)
            costs.append(backlog.cpu * 1e6 / backlog.changes)
            platform.print_line(f"  {number * _BUCKETS:,} keys: {backlog}; {costs[-1]:.0f} us of CPU each")
        note = f"of the reader's publisher, {_RATE:,} changes/s"
        found.append(Measured(name=f"keys.{number * _BUCKETS}.cpu", unit="us/change", runs=costs, note=note))
    return found
