"""How long a list, a filter, the groups and the numbers take where the store of dead letters, in a file, holds many."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import Arrival, DeadLetterId, State
from services.dead_letter.core.groups import group_of
from services.dead_letter.core.selection import Selection
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes

TARGET_MS: Final = 200
_BEGAN: Final = parse_timestamp("2026-10-22T00:00:00Z")
_SECOND: Final = 1_000_000_000
_DAYS: Final = 30
_TABLES: Final = ("flights", "planes", "airlines", "airports", "weather")
_RARE: Final = "a_table_with_one_dead_letter"
_REASONS: Final = (
    Reason.VALUE_DOES_NOT_FIT,
    Reason.REFUSED_BY_BIGQUERY,
    Reason.BAD_CHANGE,
    Reason.TOO_OLD_TO_BE_SAFE,
    Reason.SCHEMA_CONFLICT,
)
_AT_ONCE: Final = 500  # what the collector keeps in one transaction
_PAGE: Final = 50
_REPEATS: Final = 5


def measure_dead_letters(sizes: Sizes, print_line: Callable[[str], None]) -> list[Measured]:
    """Fill a store once, and ask it everything in each run."""
    with tempfile.TemporaryDirectory(prefix="dead-letters") as folder:
        database = open_database(f"sqlite:///{folder}/dead_letters.sqlite3")
        try:
            store = SqlDeadLetterStore(database)
            began = time.perf_counter()
            _fill(store, sizes.dead_letters)
            kept = sizes.dead_letters / (time.perf_counter() - began)
            _decide(store)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            print_line(f"dead letters: {sizes.dead_letters} kept at {kept:,.0f} a second, {size:,.0f} MB")
            runs = [_ask(store) for _ in range(sizes.runs)]
        finally:
            database.close()
    slowest = max(runs[0][1], key=lambda name: median(run[1][name] for run in runs))
    figures = {name: [run[0][name] for run in runs] for name in runs[0][0]}
    figures["filters"] = [max(run[1].values()) for run in runs]
    notes = {"filters": f"the slowest of {len(runs[0][1])}: {slowest}"}
    return [
        Measured(
            name=f"dead_letters.{name}",
            unit="ms",
            runs=values,
            below=TARGET_MS,
            note=notes.get(name, f"{sizes.dead_letters:,} dead letters in SQLite" if name == "list" else ""),
        )
        for name, values in figures.items()
    ] + [
        Measured(
            name="dead_letters.kept_per_second", unit="dead letters/s", runs=[kept], note=f"{_AT_ONCE} in a transaction"
        )
    ]


def _ask(store: SqlDeadLetterStore) -> tuple[dict[str, float], dict[str, float]]:
    """Return milliseconds of each question, and of the list under each filter."""
    everything = Selection()
    deep = store.find(everything, limit=max(1, store.count(everything) * 9 // 10)).after
    still_open = Selection(states=frozenset({State.OPEN}))
    questions: dict[str, Callable[[], object]] = {
        "list": lambda: store.find(everything, limit=_PAGE),
        "page_deep_inside": lambda: store.find(everything, limit=_PAGE, after=deep),
        "groups": lambda: store.groups(everything, limit=_PAGE),
        "groups_of_open": lambda: store.groups(still_open, limit=_PAGE),
        "groups_of_a_table": lambda: store.groups(Selection(tables=frozenset({"planes"})), limit=_PAGE),
        "count_of_open": lambda: store.count(still_open),
        "stats": store.stats,
    }
    return (
        {name: _milliseconds(question) for name, question in questions.items()},
        {
            name: _milliseconds(partial(store.find, selection, limit=_PAGE))
            for name, selection in _filters(store).items()
        },
    )


def _milliseconds(question: Callable[[], object]) -> float:
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        question()
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


def _filters(store: SqlDeadLetterStore) -> Mapping[str, Selection]:
    some = store.find(Selection(tables=frozenset({"planes"})), limit=1).dead_letters[0]
    day = 24 * 3600 * _SECOND
    return {
        "table": Selection(tables=frozenset({"planes"})),
        "a rare table": Selection(tables=frozenset({_RARE})),
        "tables": Selection(tables=frozenset(_TABLES)),
        "reason": Selection(reasons=frozenset({Reason.SCHEMA_CONFLICT})),
        "a reason of none": Selection(reasons=frozenset({Reason.TOO_LARGE})),
        "group": Selection(groups=frozenset({some.group})),
        "a group of none": Selection(groups=frozenset({group_of(Reason.BAD_NAME, "", "")})),
        "key": Selection(keys=frozenset({some.key})),
        "id": Selection(ids=frozenset({some.id})),
        "state": Selection(states=frozenset({State.DISCARDED})),
        "a state of none": Selection(states=frozenset({State.SUPERSEDED})),
        "a day long ago": Selection(
            failed_from=Nanoseconds(_BEGAN + 2 * day), failed_until=Nanoseconds(_BEGAN + 3 * day)
        ),
        "sequence": Selection(sequence_from=some.sequence, sequence_until=str(four_sections((1 << 64) - 1))),
        "a rare table's state": Selection(tables=frozenset({_RARE}), states=frozenset({State.OPEN})),
        "a table's reason": Selection(tables=frozenset({"planes"}), reasons=frozenset({Reason.SCHEMA_CONFLICT})),
        "what no dead letter is": Selection(tables=frozenset({"planes"}), reasons=frozenset({Reason.TOO_LARGE})),
        "discarded planes long ago": Selection(
            tables=frozenset({"planes"}), states=frozenset({State.DISCARDED}), failed_until=Nanoseconds(_BEGAN + day)
        ),
        "a key's state": Selection(keys=frozenset({some.key}), states=frozenset({State.OPEN, State.REPLAYED})),
    }


def _fill(store: SqlDeadLetterStore, count: int) -> None:
    arrivals: list[Arrival] = []
    for number, dead_letter in enumerate(_dead_letters(count)):
        arrivals.append(Arrival(dead_letter=dead_letter, message_id=str(number)))
        if len(arrivals) == _AT_ONCE or number == count - 1:
            store.keep(arrivals, Nanoseconds(dead_letter.failed_at + _SECOND))
            arrivals = []


def _dead_letters(count: int) -> Iterator[DeadLetter]:
    chance = random.Random(7)
    for number in range(count):
        failed_at = Nanoseconds(_BEGAN + number * _DAYS * 24 * 3600 * _SECOND // count)
        table = _RARE if number == count // 3 else chance.choice(_TABLES)
        key = chance.randrange(count)
        yield DeadLetter(
            data=(f'{{"header":{{"table":"{table}"}},"keys":[{{"id":"{key}"}}],"rows":["' + "x" * 400 + '"]}').encode(),
            attributes={"table": table, "source": "//spanner.googleapis.com/projects/p", "change_count": "1"},
            ordering_key=f"{table}/{key % 16}",
            reason=chance.choice(_REASONS),
            detail=f"column c{chance.randrange(12)} of type INT64: {number} is no whole number of 64 bits",
            failed_at=failed_at,
            failed_in="cdc_consumer",
            table=table,
            key=f"[{key}]",
            sequence=str(four_sections(failed_at // 1000, 1)),
            commit_timestamp=format_timestamp(failed_at),
        )


def _decide(store: SqlDeadLetterStore) -> None:
    """Discard one dead letter in five."""
    after = None
    while True:
        page = store.find(Selection(), limit=5_000, after=after)
        some: list[DeadLetterId] = [line.id for line in page.dead_letters[::5]]
        last = page.dead_letters[0].last_failed_at
        store.set_state(some, State.DISCARDED, only_from=frozenset(State), who="ann", now=last, why="of no use")
        after = page.after
        if after is None:
            return
