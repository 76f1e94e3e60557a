"""How large a benchmark is: variables of the environment, all with a default that the figures are meant for."""

from dataclasses import dataclass
from typing import Final

from shared.runtime.settings import setting

PARTS: Final = (
    "start",
    "drain",
    "cluster",
    "executors",
    "java",
    "flatness",
    "backlog",
    "reader",
    "keys",
    "completion",
    "snapshot",
    "bigtable",
    "freshness",
    "idle",
    "dead-letters",
    "profile",
)


def _known_parts(text: str) -> None:
    unknown = sorted(set(parts_of(text)) - set(PARTS))
    if unknown:
        raise ValueError(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")


def parts_of(text: str) -> tuple[str, ...]:
    """Return the parts in a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What `make bench` is told."""

    only: str = setting("parts to run, with commas between; all", env="BENCH_ONLY", default="", check=_known_parts)
    runs: int = setting("runs of each", env="BENCH_RUNS", default=3, least=1)
    repeats: int = setting(
        "how often a run of freshness or completion that is not valid is repeated",
        env="BENCH_REPEATS",
        default=2,
        least=0,
    )
    changes: int = setting("changes in a backlog", env="BENCH_CHANGES", default=600_000, least=100)
    keys: int = setting("rows that are changed", env="BENCH_KEYS", default=100_000, least=5)
    rate: int = setting("changes a second as the backlog is packed", env="BENCH_RATE", default=50_000, least=1)
    baseline_changes: int = setting(
        "changes in the baseline's backlog, one a message", env="BENCH_BASELINE_CHANGES", default=20_000, least=10
    )
    image: str = setting("the consumer's image, for the part start; processes alone", env="BENCH_IMAGE", default="")
    records: int = setting("records in a reader's backlog", env="BENCH_RECORDS", default=10_000, least=10)
    flat: int = setting(
        "changes in the largest backlog of flatness", env="BENCH_FLAT_CHANGES", default=1_000_000, least=1_000
    )
    backlog: int = setting(
        "changes in the backlog of the part of that name", env="BENCH_BACKLOG", default=10_000_000, least=100
    )
    snapshot_rows: int = setting("rows of a snapshot", env="BENCH_SNAPSHOT_ROWS", default=50_000, least=5)
    dead_letters: int = setting("dead letters in the store", env="BENCH_DEAD_LETTERS", default=100_000, least=100)
    seconds: int = setting(
        "how long freshness, completion and idling are watched", env="BENCH_SECONDS", default=30, least=1
    )

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts to run, in their order."""
        chosen = parts_of(self.only) or PARTS
        return tuple(part for part in PARTS if part in chosen)
