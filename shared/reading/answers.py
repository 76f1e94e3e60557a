"""What the commands `pause`, `resume`, `topic` and `snapshot --cancel` of both readers answer: in words, or as JSON."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TextIO

from shared.contracts.errors import MisconfiguredError
from shared.runtime.answers import print_answer

Changed = Mapping[str | None, bool]
"""By table, whether a command has changed anything of it; None is the stream."""


def answer_pause(changed: Changed, out: TextIO, *, as_json: bool, retention: timedelta | None = None) -> int:
    """Print what is paused; return 0. ``retention``: for how long the stream keeps its records, where that is known."""
    print_answer({"paused": _document(changed)}, _paused(changed, retention), as_json, out)
    return 0


def answer_resume(changed: Changed, still_paused: list[str], out: TextIO, *, as_json: bool) -> int:
    """Print what goes on, and which tables do not yet; return 1 where something was not paused, else 0."""
    document = {"resumed": _document(changed), "still_paused": still_paused}
    print_answer(document, _resumed(changed, still_paused), as_json, out)
    return int(not all(changed.values()))


def answer_topic(before: str | None, now: str, out: TextIO, *, as_json: bool) -> int:
    """Print to which topic the readers publish from now on; return 0. MisconfiguredError if there was none before."""
    if before is None:
        raise MisconfiguredError("no-topic-remembered", "no topic is stored yet: start the reader with the right TOPIC")
    lines = [f"the readers publish to {now} from now on" + (f", and no longer to {before}" if before != now else "")]
    print_answer({"topic": now, "before": before}, lines, as_json, out)
    return 0


def answer_cancellation(changed: Changed, out: TextIO, *, as_json: bool) -> int:
    """Print of which tables what was left to read is given up; return 0."""
    lines = [
        f"{table}: given up; what was read stays" if has_changed else f"{table}: nothing was left to read"
        for table, has_changed in changed.items()
    ]
    print_answer({"cancelled": _document(changed)}, lines, as_json, out)
    return 0


def _document(changed: Changed) -> list[Mapping[str, object]]:
    return [{"table": table, "changed": has_changed} for table, has_changed in changed.items()]


def _paused(changed: Changed, retention: timedelta | None) -> Iterator[str]:
    kept = f" (the stream keeps it for {retention})" if retention else "; `status` says for how long that is kept"
    for table, is_new in changed.items():
        what = "is paused now" if is_new else "was paused already"
        if table is None:
            yield f"the stream {what}: nothing is read until `resume`{kept}"
        else:
            yield f"{table} {what}: its changes are dropped until `resume {table}`, and it is pending resync"


def _resumed(changed: Changed, still_paused: list[str]) -> Iterator[str]:
    for table, was_paused in changed.items():
        if table is None:
            yield "the stream goes on where it was" if was_paused else "the stream was not paused"
        elif was_paused:
            yield f"{table} goes on; it is pending resync: `snapshot {table}` brings its rows"
        else:
            yield f"{table} was not paused"
    if still_paused:
        yield f"still paused: {', '.join(still_paused)}; `resume {' '.join(still_paused)}` lets them go on"
