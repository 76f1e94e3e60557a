"""`delete-missing-rows` on the stand-in: what the source does not have goes, what it has stays, and no wrong T."""

import io
import json
import signal
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from google.api_core.exceptions import Forbidden
from google.cloud import bigquery

from deploy.local.platform.processes import wait_until
from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    COMPLETE_SINCE,
    COMPLETE_TOLD,
    MISSING_ROWS_DELETED,
    NEEDS_RESYNC,
)
from services.cdc_consumer.adapters.bigquery.mirror_queries import MirrorQueries
from services.cdc_consumer.adapters.delete_missing_rows.mirror_rows import BigQueryMirrorRows, disk_row_buffer
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.adapters.status.mirrors import read_mirrors
from services.cdc_consumer.app.delete_missing_rows import deletion
from services.cdc_consumer.commands.command_line import DeleteMissingRowsCommand
from services.cdc_consumer.core.delete_missing_rows.deletion import deletions
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.ports import RECREATED
from services.cdc_consumer.ports import Mirror as ListedMirror
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.commands import command
from services.cdc_consumer.wiring.delete_missing_rows import delete_missing_rows_command, deleting
from shared.bigquery.client import open_client
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import SystemClock
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.builders import a_header, a_message, messages_table
from tests.integration.mirror_with_missing_rows import GONE, LIVING, NEWER, SOURCE, Mirror, T, shown
from tests.integration.stand_in import PROJECT, StandIn

pytestmark = pytest.mark.integration


@pytest.fixture
def mirror(bigquery_stand_in: tuple[str, str]) -> Iterator[Mirror]:
    found = Mirror(StandIn(bigquery_stand_in), bigquery_stand_in)
    found.write(NEWER, T)
    found.write(GONE, T - 1)
    found.label(**{COMPLETE_SINCE: str(T)})
    yield found
    found.stand_in.client.delete_dataset(found.stand_in.dataset, delete_contents=True)


def test_what_the_source_does_not_have_is_listed_and_then_deleted(mirror: Mirror) -> None:
    mirror.label(**{NEEDS_RESYNC: RECREATED})
    code, answer = mirror.delete_missing_rows()
    assert (code, answer["older"], answer["gone"], answer["deleted"], answer["left"]) == (0, 5, 5, 0, None)
    assert answer["some_gone"] == [f"[{key}]" for key in GONE]
    assert mirror.keys() == [*NEWER, *GONE]
    assert MISSING_ROWS_DELETED not in mirror.table.labels

    code, answer = mirror.delete_missing_rows("--execute")
    assert (code, answer["deleted"], answer["left"]) == (0, 5, 0)
    assert mirror.keys() == [*NEWER]
    assert mirror.table.labels[MISSING_ROWS_DELETED] == str(T)
    assert NEEDS_RESYNC not in mirror.table.labels

    code, answer = mirror.delete_missing_rows("--execute")
    assert (code, answer["older"], answer["deleted"]) == (0, 0, 0)


def test_a_deletion_reports_what_it_would_read_and_what_it_was_billed_for_and_keeps_to_a_limit(mirror: Mirror) -> None:
    code, answer = mirror.delete_missing_rows("--dry-run")
    assert (code, answer["read_bytes"], answer["count_bytes"]) == (0, 8 * (8 + 69), 8 * 69)

    with pytest.raises(MisconfiguredError, match=r"would bill 10485760 bytes .* more than --max-bytes 10000000 allows"):
        mirror.delete_missing_rows("--execute", "--max-bytes", "10MB")
    assert mirror.keys() == [*NEWER, *GONE]

    code, answer = mirror.delete_missing_rows("--execute", "--max-bytes", "20971520")
    assert (code, answer["queries"], answer["bytes_billed"]) == (0, 2, 20_971_520)
    assert mirror.keys() == [*NEWER]


def test_rows_from_before_millrace_are_older_than_anything(mirror: Mirror) -> None:
    mirror.stand_in.run("INSERT INTO Things (Id, Note) VALUES (3000, 'old'), (20, 'lives')")
    code, answer = mirror.delete_missing_rows("--execute")

    assert (code, answer["older"], answer["in_source"]) == (1, 7, 1)
    assert mirror.keys() == [*NEWER, 20]


def test_what_takes_several_pages_is_counted_and_deleted_to_the_last_row(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cdc_consumer.adapters.bigquery.mirror_queries._PAGE", 7)
    monkeypatch.setattr("services.cdc_consumer.app.delete_missing_rows.deletion._ROWS_AT_ONCE", 3)
    more = range(3_000, 3_040)
    mirror.write([*more, *LIVING], T - 3)
    code, answer = mirror.delete_missing_rows("--execute")

    assert (code, answer["older"], answer["in_source"], answer["gone"]) == (1, 48, 3, 45)
    assert (answer["deleted"], answer["left"]) == (45, 0)
    assert mirror.keys() == [*LIVING, *NEWER]


def test_what_breaks_off_between_two_pages_is_read_from_its_start_however_long_it_took(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cdc_consumer.adapters.bigquery.mirror_queries._PAGE", 2)
    hours = count(step=3600.0)
    monkeypatch.setattr(tenacity, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    rows = BigQueryMirrorRows(MirrorQueries(mirror.stand_in.client), PROJECT, mirror.stand_in.dataset, Stop())
    found = rows.find("Things")
    before = mirror.stand_in.control("GET", "stats")["faults_met"]
    mirror.stand_in.control("POST", "faults", action="answer", on="rest", method="GET", times=1)
    with disk_row_buffer() as older:
        rows.older(found, T, older)

        assert mirror.stand_in.control("GET", "stats")["faults_met"] == before + 1
        assert sorted(key for page in older.pages() for key in page.column("Id").to_pylist()) == [*GONE]


def test_an_earlier_time_deletes_what_is_older_than_that_only(mirror: Mirror) -> None:
    mirror.write([1_999], T - 2)
    code, answer = mirror.delete_missing_rows("--execute", before=T - 1)

    assert (code, answer["deleted"]) == (0, 1)
    assert mirror.keys() == [*NEWER, *GONE]
    assert mirror.table.labels[MISSING_ROWS_DELETED] == str(T - 1)


def test_a_soft_delete_mirror_keeps_missing_rows_with_their_values(
    bigquery_stand_in: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "tables.toml"
    file.write_text("[defaults]\nsoft_delete = true\n")
    mirror = Mirror(StandIn(bigquery_stand_in), bigquery_stand_in, file)
    mirror.write(NEWER, T)
    mirror.write(GONE, T - 1)
    mirror.write([1_500], T - 2)
    mirror.write([1_500], T - 1, "DELETE")
    mirror.label(**{COMPLETE_SINCE: str(T)})
    code, answer = mirror.delete_missing_rows("--execute")

    assert (code, answer["older"], answer["deleted"], answer["left"]) == (0, 5, 5, 0)
    assert mirror.keys("NOT _millrace_deleted") == [*NEWER]
    deleted = mirror.stand_in.run("SELECT Id, Note FROM Things WHERE _millrace_deleted AND Id >= 2000 ORDER BY Id")
    assert deleted == [(key, f"note {key}") for key in GONE]
    assert mirror.delete_missing_rows("--execute")[1]["older"] == 0

    mirror.write([1_600], T - 1)
    mirror.tables_file = None
    assert mirror.delete_missing_rows("--execute")[1]["deleted"] == 1
    assert mirror.keys("_millrace_deleted") == [1_500, 1_600, *GONE], "by its column, whatever file a shell has"


def test_missing_rows_of_a_mirror_that_shows_things_late_are_reported_deleted_once_it_can_be_seen(
    mirror: Mirror,
) -> None:
    table = mirror.table
    table.max_staleness = "0-0 0 0:15:0"
    mirror.stand_in.client.update_table(table, ["max_staleness"])
    code, answer = mirror.delete_missing_rows("--execute")

    assert (code, answer["hidden"], answer["max_staleness_seconds"]) == (1, True, 900)
    assert MISSING_ROWS_DELETED not in mirror.table.labels


def test_a_mirror_without_query_permission_is_reported_at_once(mirror: Mirror) -> None:
    mirror.stand_in.control(
        "POST", "faults", action="answer", on="rest", method="POST", status="PERMISSION_DENIED", times=1
    )
    with pytest.raises(MisconfiguredError, match="jobUser"):
        mirror.delete_missing_rows("--execute")


@pytest.mark.parametrize(("wrong", "message"), [("yesterday", "--before"), ("2026-13-01T00:00:00Z", "--before")])
def test_an_invalid_time_is_refused_at_once(wrong: str, message: str) -> None:
    with pytest.raises(MisconfiguredError, match=message):
        delete_missing_rows_command(DeleteMissingRowsCommand(table="Things", before=wrong), {}, io.StringIO(), Stop())


def test_a_mirror_that_may_not_be_labelled_stays_pending_resync_which_is_said(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.label(**{NEEDS_RESYNC: RECREATED})

    def denied(*_words: object, **_named: object) -> None:
        raise Forbidden("Permission bigquery.tables.update denied", errors=[{"reason": "accessDenied"}])  # type: ignore[no-untyped-call]

    with monkeypatch.context() as patched:
        patched.setattr(bigquery.Client, "update_table", denied)
        code, answer = mirror.delete_missing_rows("--execute")
    assert (code, answer["unlabelled"], mirror.table.labels[NEEDS_RESYNC]) == (1, True, RECREATED)

    code, answer = mirror.delete_missing_rows("--execute")
    assert answer["unlabelled"] is False
    assert (code, NEEDS_RESYNC in mirror.table.labels) == (0, False)


def test_a_tables_file_that_does_not_fit_the_table_is_named(mirror: Mirror, tmp_path: Path) -> None:
    mirror.tables_file = tmp_path / "tables.toml"
    mirror.tables_file.write_text('[tables."Things".renamed_columns]\nNote = "id"\n')

    with pytest.raises(MisconfiguredError, match="line 1 of the tables file: column name 'id': twice"):
        mirror.delete_missing_rows("--execute")


class Known:
    """What the consumer knows of one mirror, in no trouble; it notes what is said of it."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.refusals: list[str] = []

    def mirrors(self) -> Sequence[ListedMirror]:
        return read_mirrors(self._mirror.stand_in.client, PROJECT, [self._mirror.stand_in.dataset])

    def troubled(self) -> Collection[str]:
        return ()

    def oldest_outstanding_lately(self) -> int | None:
        return None

    def deletion_refused(self, table: str, why: str) -> None:
        assert table == "Things"
        self.refusals.append(why)


def deleted_by_itself(mirror: Mirror, **more: str) -> str:
    """Let the consumer delete until it has said something of the table; return that."""
    known, stop = Known(mirror), Stop()
    environ = mirror.environment() | {"DELETE_MISSING_ROWS": "automatic", "DELETE_MISSING_ROWS_AFTER": "0s"} | more
    with deleting(read_settings(Settings, environ), known, environ, stop):
        wait_until(lambda: known.refusals or None, "missing rows to be deleted", timeout=timedelta(seconds=60))
    return known.refusals[0]


def test_an_automatic_deletion_deletes_a_small_part_or_what_the_source_lacks(mirror: Mirror) -> None:
    assert deleted_by_itself(mirror) == ""
    assert mirror.keys() == [*NEWER]
    assert mirror.table.labels[MISSING_ROWS_DELETED] == str(T)

    mirror.write(GONE, T - 1)
    mirror.write(LIVING, T - 1)
    mirror.label(**{COMPLETE_SINCE: str(T + 1)})
    mirror.write(NEWER, T + 1)
    assert deleted_by_itself(mirror, SOURCE_ROWS=SOURCE) == ""
    assert mirror.keys() == [*LIVING, *NEWER]
    assert mirror.table.labels[MISSING_ROWS_DELETED] == str(T), "rows that live are left in it, from before"


def test_no_missing_row_is_deleted_automatically_by_default(mirror: Mirror) -> None:
    environ = mirror.environment()
    with deleting(read_settings(Settings, environ), Known(mirror), environ, Stop()):
        assert [thread for thread in threading.enumerate() if thread.name == "delete-missing-rows"] == []


def test_a_row_that_is_kept_as_deleted_keeps_its_values_whatever_their_types(
    bigquery_stand_in: tuple[str, str],
) -> None:
    stand_in = StandIn(bigquery_stand_in)
    kinds = ("INT64", "FLOAT64", "NUMERIC", "BOOL", "STRING", "BYTES", "DATE", "TIMESTAMP", "JSON")
    values: Mapping[str, Sequence[object]] = {
        "INT64": [str(1 << 62), "-1"],
        "FLOAT64": [1.5, "NaN"],
        "NUMERIC": ["1.5", "-99999999999999999999999999999.999999999"],
        "BOOL": [True, False],
        "STRING": ["", "é"],
        "BYTES": ["AP8=", ""],
        "DATE": ["2026-11-22", "0001-01-01"],
        "TIMESTAMP": ["2026-11-22T10:00:00.123456Z", "1969-12-31T23:59:59.999999Z"],
        "JSON": ['{"a": [1, 2.5, null]}', "null"],
    }
    columns = [("id", "INT64"), *((kind, kind) for kind in kinds), *((f"{kind}s", f"ARRAY<{kind}>") for kind in kinds)]
    rows = [
        {kind: values[kind][0] for kind in kinds} | {f"{kind}s": values[kind] for kind in kinds},
        {kind: values[kind][1] for kind in kinds} | {f"{kind}s": [] for kind in kinds},
        dict.fromkeys(kinds) | {f"{kind}s": None for kind in kinds},
    ]
    changes = [
        Change("UPSERT", "INSERT", str(four_sections(1)), shown(1), "{}", json.dumps({"id": str(n)}), json.dumps(row))
        for n, row in enumerate(rows)
    ]
    plan = Plan(read_tables_file("[defaults]\nsoft_delete = true\n"), stand_in.dataset)
    messages = messages_table(a_message(*changes, header=a_header("every", columns)))
    (written,) = decode_messages(messages, Nanoseconds(0), plan).tables
    client = open_client(PROJECT, bigquery_stand_in[0])
    BigQueryTables(client, PROJECT, stand_in.dataset).ensure(written.definition)
    ours = "_millrace_sequence, _millrace_commit_timestamp, _millrace_deleted"
    theirs = f"SELECT * EXCEPT ({ours}) FROM every ORDER BY id"
    found = BigQueryMirrorRows(MirrorQueries(client), PROJECT, stand_in.dataset, Stop())
    with open_storage_channel(bigquery_stand_in[1]) as channel:
        writer = AppendStreams(channel, PROJECT, stand_in.dataset, Stop(), SystemClock())
        assert writer.append(written.definition, written.rows).refused() == []
        before = stand_in.run(theirs)
        mirror = found.find("every")
        with disk_row_buffer() as older:
            found.older(mirror, T, older)
            doomed = deletions(mirror.definition, pa.concat_tables(older.pages()), T, soft_delete=mirror.soft_delete)
        assert writer.append(mirror.definition, doomed).refused() == []
        writer.close()

    assert repr(stand_in.run(theirs)) == repr(before), "repr, for NaN is not equal to itself"
    assert stand_in.run("SELECT COUNTIF(_millrace_deleted) FROM every") == [(3,)]


def test_a_command_that_is_stopped_says_how_far_it_came_and_ends_with_1(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append, appended = AppendStreams.append, []

    def stopped_after_the_second(self: AppendStreams, *arguments: Any) -> Any:
        found = append(self, *arguments)
        appended.append(found.refused())
        if len(appended) == 2:
            signal.raise_signal(signal.SIGTERM)
        return found

    monkeypatch.setattr(deletion, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(AppendStreams, "append", stopped_after_the_second)
    words = ["delete-missing-rows", "Things", "--before", shown(T), "--execute", "--source", SOURCE]

    assert command(words, mirror.environment()) == 1
    assert f"asked to stop when 2 of {len(GONE)} rows were deleted: run it again" in capsys.readouterr().err
    assert len(mirror.keys(f"Id IN ({', '.join(map(str, GONE))})")) == len(GONE) - 2


def test_a_time_before_the_one_that_a_recreated_mirror_is_complete_since_leaves_it_pending(mirror: Mirror) -> None:
    mirror.label(**{COMPLETE_SINCE: str(T), COMPLETE_TOLD: "1000", NEEDS_RESYNC: RECREATED})
    code, answer = mirror.delete_missing_rows("--execute", before=T - 10_000_000)

    assert (code, answer["still_pending"], mirror.table.labels[NEEDS_RESYNC]) == (1, True, RECREATED)
    code, answer = mirror.delete_missing_rows("--execute")
    assert (code, answer["still_pending"], NEEDS_RESYNC in mirror.table.labels) == (0, False, False)
