"""What brings the rows of a table into the stream again, where the mirror may differ: in words that can be followed.

A snapshot does. Without one, an own update of every row makes Spanner write each of them, whole, into the stream.
"""

from typing import Final

from services.spanner_reader.core.schema.shapes import NEVER, SpannerResyncKind, SpannerResyncRequest
from shared.contracts.timestamps import format_timestamp

_UNPROVEN: Final = (
    "that an update which changes nothing is written to the stream was seen on Spanner's emulator only, so see it "
    "arrive"
)
_ALL_KEY: Final = (
    "where all columns are the key, add one: ALTER TABLE T ADD COLUMN c BOOL, set it TRUE, and drop it once that has "
    "arrived"
)
RESTART_WITH_ALL_ROWS: Final = (
    "start again with another PARTITION_TABLE and SNAPSHOT=initial, which brings every row, and delete missing rows "
    "after it: a mirror is then complete, a history keeps a gap"
)
"""Where something is lost to the stream."""

_ROWS_MAY_BE_GONE: Final = frozenset(
    {
        SpannerResyncKind.TABLE_AGAIN,
        SpannerResyncKind.TABLE_WATCHED,
        SpannerResyncKind.TABLE_RENAMED,
        SpannerResyncKind.TABLE_EXCLUDED,
        SpannerResyncKind.TABLE_LOST,
    }
)


def fix_of(request: SpannerResyncRequest, quote: str) -> str:
    """Return what fixes a table that is pending resync; ``quote`` is what the database's SQL has around a name."""
    table, kinds = request.table, {found.kind for found in request.findings}
    if SpannerResyncKind.TABLE_PAUSED in kinds:
        resume = f"`python -m services.spanner_reader resume {table}`; then " if request.sync_after == NEVER else ""
        return (
            f"{resume}`python -m services.spanner_reader snapshot {table}` brings its rows, and when that is done "
            f"`python -m services.cdc_consumer delete-missing-rows {table} --before` its time deletes the rows that "
            "were deleted"
        )
    column = next((found.columns[-1] for found in reversed(request.findings) if found.columns), None)
    shown = "c" if column is None else f"{quote}{column}{quote}"
    any_column = "c: a column" if column is None else "or another column"
    all_key = f"{_ALL_KEY}; " if column is None else ""
    drop = (
        "drop its mirror in BigQuery, for rows may be gone that no record tells of: the next change makes it again "
        "(the consumer notes that, and its doctor says how to clear the note); "
        if kinds & _ROWS_MAY_BE_GONE
        else ""
    )
    by_itself = (
        "; Spanner may have written the values of the default to the stream by itself, then a comparison of the column "
        "will do"
        if kinds == {SpannerResyncKind.COLUMN_DEFAULTED}
        else ""
    )
    delete_missing_rows = (
        f", and then `python -m services.cdc_consumer delete-missing-rows {table} --before` its time deletes the rows "
        "that are gone"
        if kinds & _ROWS_MAY_BE_GONE
        else ""
    )
    settled = (
        f"once all readers have the same tables file, and after {format_timestamp(request.sync_after)}, "
        if any(found.dropped_until for found in request.findings)
        else ""
    )
    return (
        f"{settled}"  # noqa: S608  a text for people
        f"`python -m services.spanner_reader snapshot {table}` brings all rows as they are now, and the resync request "
        f"is deleted once it is complete{delete_missing_rows}; or, without a snapshot: "
        f"{drop}after {format_timestamp(request.sync_after)}, touch every row in "
        f"Spanner, for instance with partitioned DML: UPDATE {_quoted(table, quote)} SET {shown} = {shown} WHERE TRUE "
        f"({any_column} outside the key that the stream watches; {all_key}{_UNPROVEN}){by_itself}; "
        f"then run `python -m services.spanner_reader synced {table}`"
    )


def _quoted(table: str, quote: str) -> str:
    return ".".join(f"{quote}{part}{quote}" for part in table.split("."))
