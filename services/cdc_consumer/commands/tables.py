"""What the command `tables` prints."""

from collections.abc import Iterator, Sequence
from typing import TextIO

from services.cdc_consumer.core.schema.preview import ColumnPreview, DestinationPreview, TablePreview
from shared.contracts.durations import format_duration
from shared.runtime.answers import print_answer
from shared.runtime.findings import Finding, Level, finding_lines, wrapped


def exit_code(previews: Sequence[TablePreview], findings: Sequence[Finding]) -> int:
    """Return 1 if something would not work as the file has it, else 0."""
    unfit = any(one.refused or one.unknown_columns for one in previews)
    return int(unfit or any(one.level is Level.ERROR for one in findings))


def print_previews(previews: Sequence[TablePreview], findings: Sequence[Finding], as_json: bool, out: TextIO) -> None:
    """Write what source tables become, then what is found of the settings and the file.

    In JSON durations are ISO 8601 (``PT900S``).
    """
    document = {"tables": previews, "findings": findings}
    print_answer(document, [*lines(previews), "", *finding_lines(findings)], as_json, out)


def lines(previews: Sequence[TablePreview]) -> Iterator[str]:
    """Return a block for each source table, and how many there are."""
    for one in previews:
        yield from _table(one)
    made = sum(len(one.tables) for one in previews if not one.refused)
    left_out, refused = sum(bool(one.left_out) for one in previews), sum(bool(one.refused) for one in previews)
    yield f"{len(previews)} source tables: {made} tables in BigQuery, {left_out} left out, {refused} refused"


def _table(one: TablePreview) -> Iterator[str]:
    if one.left_out:
        yield f"{one.source_table}: left out: {one.left_out}"
        return
    if one.refused:
        yield f"{one.source_table}: REFUSED"
        yield from wrapped(one.refused, "  ", "  ")
        return
    yield one.source_table
    for table in one.tables:
        yield from _destination(table)
    if one.ignored_columns:
        yield f"  left out: {', '.join(one.ignored_columns)} (ignored_columns, {one.ignored_by})"
    if one.unknown_columns:
        yield f"  NOT THERE: {', '.join(one.unknown_columns)}, which the tables file names: misspelt, or dropped?"
    if one.soft_delete:
        yield "  a deleted row stays, with _millrace_deleted (soft_delete)"
    yield from (f"  {note}" for note in one.notes)


def _destination(table: DestinationPreview) -> Iterator[str]:
    yield f"  {table.kind} {table.dataset}.{table.name}"
    yield f"    {'key' if table.kind == 'mirror' else 'rows belong together by'}: {', '.join(table.key)}"
    yield f"    clustered by: {', '.join(table.clustered_by) or 'nothing'}"
    if table.kind == "mirror":
        stale = "as it is; a new table is fresh at every query"
        stale = format_duration(table.max_staleness) if table.max_staleness is not None else stale
        yield f"    max_staleness: {stale}"
    else:
        keep = format_duration(table.keep) if table.keep is not None else "as it is; a new table keeps everything"
        yield f"    partitioned by: day of {table.partitioned_by}; keep: {keep}"
        yield f"    view: {table.dataset}.{table.view}"
    width = max(len(column.name) for column in table.columns)
    kinds = max(len(column.type) for column in table.columns)
    for column in table.columns:
        yield f"      {column.name:<{width}}  {column.type:<{kinds}}  {_origin(column)}".rstrip()


def _origin(column: ColumnPreview) -> str:
    if not column.source:
        return "Millrace's own"
    origin = [f"from {column.source}"] if column.source != column.name else []
    origin += [f"of type {column.source_type}"] if column.source_type != column.type else []
    origin += [f"masked: {column.mask}"] if column.mask else []
    return ", ".join(origin)
