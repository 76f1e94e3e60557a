"""How comparisons of tables with their mirrors are reported: as text, as one JSON object, and as an exit code."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final

import msgspec

from services.cdc_consumer.app.reconcile.comparison import Difference, TableDifferences
from services.cdc_consumer.app.reconcile.reconcile import BLOCK
from services.cdc_consumer.ports import FoundMirror, QueryEstimate
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.durations import format_duration
from shared.contracts.sizes import format_size
from shared.contracts.timestamps import Nanoseconds, format_timestamp

EQUAL: Final = 0
DIFFERENT: Final = 1
UNDECIDED: Final = 3
"""No difference stands, and yet not all rows are known to be equal."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What is good enough of each table."""

    max_differences: int = 0
    """Rows that may differ."""
    min_coverage: float = 100
    """The percentage of the rows that have to be compared."""


def exit_code(results: Sequence[TableDifferences], thresholds: Thresholds | None = None) -> int:
    """Return 0 where all is equal, 1 where a row differs, 3 where none does for certain and some are undecided.

    With thresholds: 1 where more rows of a table differ than may, 3 where too few are compared.
    """
    asked = thresholds or Thresholds()
    if any(len(one.differences) > asked.max_differences for one in results):
        return DIFFERENT
    least = Fraction(str(asked.min_coverage)) / 100
    return EQUAL if all(one.coverage >= least for one in results) else UNDECIDED


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
    yield f"  {one.compared} of {one.rows} rows compared ({_percent(one):g} %){_cost(one)}"
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
    if one.not_rechecked:
        yield (
            f"  {one.not_rechecked} rows more differed when both sides were read, and were not rechecked: "
            "take a snapshot of the table rather than repair it"
        )
    if one.stopped:
        yield f"  stopped: {one.stopped}"
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
            "rows": one.rows,
            "compared": one.compared,
            "coverage_percent": _percent(one),
            "queries": one.cost.queries,
            "bytes_billed": one.cost.bytes_billed,
            "differences": [_shown(each) for each in one.differences],
            "changing": [_shown(each) for each in one.changing],
            "behind": [_shown(each) for each in one.behind],
            "not_rechecked": one.not_rechecked,
            "stopped": one.stopped or None,
            "repaired": one.repaired,
            "not_repaired": one.not_repaired,
            "compared_as_null": one.lacking,
            "not_compared": one.left_out,
        }
        for one in results
    ]
    return {"tables": compared, "not_compared": _failed(failed)}


def estimate_lines(table: str, mirror: FoundMirror, estimate: QueryEstimate) -> Iterator[str]:
    """Return what a comparison would read as text."""
    yield f"{table}: one query reads {mirror.path}: {_size(estimate.read)}"
    yield f"  where rows differ, two queries or more of each {BLOCK} such rows read {_size(estimate.again)} each"


def estimates_document(
    found: Mapping[str, tuple[FoundMirror, QueryEstimate]], failed: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return what comparisons would read as one object."""
    tables = [
        {"table": table, "mirror": mirror.path, "read_bytes": estimate.read, "recheck_bytes": estimate.again}
        for table, (mirror, estimate) in found.items()
    ]
    return {"tables": tables, "not_compared": _failed(failed)}


def _failed(failed: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    return [{"table": table, "why": why} for table, why in failed.items()]


def _percent(one: TableDifferences) -> float:
    """Return the coverage in percent; 100 only where it is whole."""
    return math.floor(one.coverage * 10_000) / 100


def _cost(one: TableDifferences) -> str:
    cost = one.cost
    return f"; BigQuery billed {cost.bytes_billed} bytes for {cost.queries} queries" if cost.queries else ""


def _size(size: int) -> str:
    return f"{size} bytes ({format_size(size)})"


def _shown(one: Difference) -> Mapping[str, Any]:
    shown = {"key": msgspec.Raw(one.key.encode()), "kind": one.kind.value, "applied": one.applied or None}
    return {**shown, "why": one.why} if one.why else shown


def _moment(sequence: str) -> str | None:
    """Return the time that a sequence begins with; None where it begins with none."""
    try:
        return format_timestamp(Nanoseconds(parse_sequence(sequence).sections[0] * 1_000))
    except (ValueError, OverflowError):
        return None
