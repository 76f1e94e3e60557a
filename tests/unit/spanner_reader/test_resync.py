from dataclasses import replace

import pytest

from services.spanner_reader.core.pauses import Pause
from services.spanner_reader.core.schema.resync import fix_of
from services.spanner_reader.core.schema.shapes import SpannerResyncCause, SpannerResyncKind, SpannerResyncRequest
from tests.unit.spanner_reader.scripts import at

ADDED = SpannerResyncCause("s.T", SpannerResyncKind.COLUMN_DEFAULTED, at("09:00:00"), at("09:00:01"), ("Born",))
RETYPED = replace(ADDED, kind=SpannerResyncKind.COLUMN_RETYPED, before=at("09:00:02"), columns=("Name", "Age"))


def test_the_fix_is_a_statement_to_copy_after_the_last_time_at_which_the_table_may_have_changed() -> None:
    text = fix_of(SpannerResyncRequest("s.T", (ADDED, RETYPED)), "`")
    assert text.startswith("`python -m services.spanner_reader snapshot s.T` brings all rows as they are now")
    assert "without a snapshot: after 2022-05-01T09:00:03Z, touch every row in Spanner" in text
    assert "partitioned DML: UPDATE `s`.`T` SET `Age` = `Age` WHERE TRUE (" in text
    assert text.endswith("then run `python -m services.spanner_reader synced s.T`")
    assert 'UPDATE "s"."T" SET "Age" = "Age" WHERE TRUE (' in fix_of(SpannerResyncRequest("s.T", (ADDED, RETYPED)), '"')


def test_a_table_that_the_tables_file_lets_in_is_read_when_no_reader_can_drop_changes_of_it() -> None:
    let_in = SpannerResyncCause(
        "T", SpannerResyncKind.TABLE_WATCHED, at("09:00:00"), at("09:00:01"), dropped_until=at("09:03:01")
    )
    text = fix_of(SpannerResyncRequest("T", (let_in,)), "`")
    assert text.startswith(
        "once all readers have the same tables file, and after 2022-05-01T09:03:01Z, "
        "`python -m services.spanner_reader snapshot T` brings all rows"
    )


def test_where_no_column_is_to_blame_the_fix_reports_which_would_do() -> None:
    text = fix_of(
        SpannerResyncRequest(
            "T", (SpannerResyncCause("T", SpannerResyncKind.TABLE_AGAIN, at("09:00:00"), at("09:00:01")),)
        ),
        "`",
    )
    assert "UPDATE `T` SET c = c WHERE TRUE (c: a column outside the key that the stream watches" in text


@pytest.mark.parametrize("kind", sorted(set(SpannerResyncKind) - {SpannerResyncKind.TABLE_PAUSED}))
def test_a_mirror_is_dropped_where_rows_may_be_gone_and_kept_where_only_columns_changed(
    kind: SpannerResyncKind,
) -> None:
    text = fix_of(SpannerResyncRequest("T", (replace(ADDED, table="T", kind=kind),)), "`")
    assert ("drop its mirror in BigQuery" in text) == kind.value.startswith("table_")
    assert (" delete-missing-rows T --before" in text) == kind.value.startswith("table_")
    assert "emulator only" in text


def test_what_a_default_may_have_published_by_itself_is_reported_of_that_alone() -> None:
    assert "by itself" in fix_of(SpannerResyncRequest("s.T", (ADDED,)), "`")
    assert "by itself" not in fix_of(SpannerResyncRequest("s.T", (ADDED, RETYPED)), "`")


def test_a_paused_table_is_resumed_first_and_one_that_was_needs_its_rows_and_what_was_deleted() -> None:
    pause = Pause(at("09:00:00"), at("09:00:00"))
    paused = fix_of(SpannerResyncRequest("T", (pause.finding("T"),)), "`")
    resumed = fix_of(
        SpannerResyncRequest("T", (replace(pause, resumed_at=at("09:30:00")).finding("T"), replace(ADDED, table="T"))),
        "`",
    )
    assert [f" {word} T" in paused for word in ("resume", "snapshot", "delete-missing-rows")] == [True, True, True]
    assert [f" {word} T" in resumed for word in ("resume", "snapshot", "delete-missing-rows")] == [False, True, True]
