"""How comparisons of tables with their mirrors are told: as text, as one JSON object, and as an exit code."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from services.cdc_consumer.app.reconcile.comparison import Difference, TableDifferences
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.durations import format_duration
from shared.contracts.timestamps import Nanoseconds, format_timestamp

EQUAL: Final = 0
DIFFERENT: Final = 1
UNDECIDED: Final = 3
"""No difference stands, and yet not all rows are known to be equal."""


def exit_code(results: Sequence[TableDifferences]) -> int:
    """Return 0 where all is equal, 1 where a row differs, 3 where none does for certain and some are undecided."""
    if any(one.differences for one in results):
        return DIFFERENT
    return EQUAL if all(one.equal for one in results) else UNDECIDED


def lines(one: TableDifferences, limit: int) -> Iterator[str]:
    """Return a comparison as text: the verdict first, then so many keys, then what else is to be known of it."""
    stood = format_duration(one.settle)
    rows = f"{one.source_rows} rows as of {one.read_at}"
    counts = Counter(each.kind.value for each in one.differences)
    if one.differences:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        yield f"{one.table}: {len(one.differences)} rows differ ({kinds}), and did for {stood}; {rows}"
    elif one.undecided:
        yield f"{one.table}: no difference stands, but {one.undecided} rows are undecided; {rows}"
    else:
        repaired = f" since {one.repaired} rows were repaired" if one.repaired else ""
        yield f"{one.table}: equal{repaired}; {rows}"
    for each in one.differences[:limit]:
        yield f"  {each.kind.value:<9}  {each.key}{f'  {each.why}' if each.why else ''}"
    if len(one.differences) > limit:
        yield f"  and {len(one.differences) - limit} more: --limit N shows more, --json all"
    if one.repaired and one.differences:
        yield f"  {one.repaired} rows were repaired"
    if one.changing:
        yield f"  {len(one.changing)} rows kept changing in the mirror, and are neither equal nor different"
    if one.behind:
        yield f"  {len(one.behind)} rows differ, but the mirror is behind: changes are still being applied"
    if one.not_looked_at:
        yield (
            f"  {one.not_looked_at} rows more differed when both sides were read, and were not looked at again: "
            "take a snapshot of the table rather than repair it"
        )
    for why in one.not_repaired[:limit]:
        yield f"  not repaired: {why}"
    if one.lacking:
        yield f"  not in the mirror yet, and compared as NULL: {', '.join(one.lacking)}"
    if one.left_out:
        yield f"  only in the mirror, and not compared: {', '.join(one.left_out)}"
    if applied := _moment(one.newest_applied):
        yield f"  the newest change applied is of {applied}"


def document(results: Sequence[TableDifferences], failed: Mapping[str, str]) -> Mapping[str, Any]:
    """Return comparisons as one object, with all keys; ``failed`` are tables that could not be compared, and why."""
    compared = [
        {
            "table": one.table,
            "verdict": "different" if one.differences else "equal" if one.equal else "undecided",
            "mirror": one.mirror,
            "read_at": one.read_at,
            "newest_applied": _moment(one.newest_applied),
            "settle_seconds": one.settle / timedelta(seconds=1),
            "source_rows": one.source_rows,
            "mirror_rows": one.mirror_rows,
            "differences": [_shown(each) for each in one.differences],
            "changing": [_shown(each) for each in one.changing],
            "behind": [_shown(each) for each in one.behind],
            "not_looked_at": one.not_looked_at,
            "repaired": one.repaired,
            "not_repaired": one.not_repaired,
            "compared_as_null": one.lacking,
            "not_compared": one.left_out,
        }
        for one in results
    ]
    return {"tables": compared, "not_compared": [{"table": table, "why": why} for table, why in failed.items()]}


def json_text(results: Sequence[TableDifferences], failed: Mapping[str, str]) -> str:
    """Return the object as JSON, to be read by people, too."""
    return msgspec.json.format(msgspec.json.encode(document(results, failed)), indent=2).decode()


def _shown(one: Difference) -> Mapping[str, Any]:
    shown = {"key": msgspec.Raw(one.key.encode()), "kind": one.kind.value, "applied": one.applied or None}
    return {**shown, "why": one.why} if one.why else shown


def _moment(sequence: str) -> str | None:
    """Return the time that a sequence begins with; None where it begins with none."""
    try:
        return format_timestamp(Nanoseconds(parse_sequence(sequence).sections[0] * 1_000))
    except (ValueError, OverflowError):
        return None
