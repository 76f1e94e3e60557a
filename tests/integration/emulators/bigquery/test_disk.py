"""Data kept on disk: what was accepted is there after the process was killed, once, and so is every definition."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.api_core import exceptions

from tests.integration.stand_in import PROJECT, StandIn, a_process
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

KEY_VALUE = {"k": "int64", "v": "string", **CHANGE}


@contextmanager
def running(directory: Path, end: signal.Signals, dataset: str | None = None) -> Iterator[StandIn]:
    """Run a stand-in on a directory, and end it by a signal."""
    with a_process(end, f"--directory={directory}", dataset=dataset) as (stand_in, _process):
        yield stand_in


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_accepted_is_there_after_the_process_ended(tmp_path: Path, end: signal.Signals) -> None:
    with running(tmp_path, end) as stand_in:
        stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED) CLUSTER BY k")
        stand_in.run("CREATE TABLE plain (k INT64, v STRING)")
        stand_in.append("t", KEY_VALUE, [change("UPSERT", "2", k=1, v="x"), change("DELETE", "3", k=2)])
        assert stand_in.run("SELECT * FROM t") == [(1, "x")]
        stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", k=1, v="late"), change("UPSERT", "5", k=3, v="z")])
        stand_in.append("plain", {"k": "int64", "v": "string"}, [{"k": 1, "v": "once"}])
        stand_in.run("ALTER TABLE t ADD COLUMN added ARRAY<STRING>")
        stand_in.append("plain", {"k": "int64", "v": "string"}, [{"k": 2, "v": "once"}])
        before = stand_in.client.get_table(f"{stand_in.dataset}.t")

    for _ in range(2):
        with running(tmp_path, end, stand_in.dataset) as again:
            after = again.client.get_table(f"{again.dataset}.t")
            assert (after.etag, after.schema, after.created) == (before.etag, before.schema, before.created)
            assert again.run("SELECT k, v FROM t ORDER BY k") == [(1, "x"), (3, "z")]
            assert again.run("SELECT k, v FROM plain ORDER BY k") == [(1, "once"), (2, "once")]
            again.append("t", KEY_VALUE, [change("UPSERT", "2", k=2, v="older than its delete")])
            assert again.run("SELECT COUNT(*) FROM t") == [(2,)]
            with pytest.raises(exceptions.BadRequest, match="streamed"):
                again.run("DELETE FROM t WHERE true")


def test_what_waits_for_an_apply_goes_on_waiting(tmp_path: Path) -> None:
    with running(tmp_path, signal.SIGKILL) as stand_in:
        stand_in.run(
            "CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
            "OPTIONS (max_staleness = INTERVAL 10 MINUTE)"
        )
        stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", k=1, v="applied")])
        stand_in.control("POST", "applies/run")
        stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", k=2, v="waits")])
        watermarks = f"SELECT upsert_stream_apply_watermark FROM {stand_in.dataset}.INFORMATION_SCHEMA.TABLES"
        before = stand_in.run(watermarks)

    with running(tmp_path, signal.SIGKILL, stand_in.dataset) as again:
        assert again.run("SELECT k FROM t") == [(1,)]
        assert again.run(watermarks) == before
        again.control("POST", "applies/run")
        assert again.run("SELECT k FROM t ORDER BY k") == [(1,), (2,)]


def test_what_was_dropped_stays_dropped_and_a_table_made_again_is_another_one(tmp_path: Path) -> None:
    with running(tmp_path, signal.SIGKILL) as stand_in:
        for table in ("t", "u"):
            stand_in.run(f"CREATE TABLE {table} (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
            stand_in.append(table, KEY_VALUE, [change("UPSERT", "1", k=1, v="x")])
            stand_in.run(f"DROP TABLE {table}")
        stand_in.run("CREATE TABLE u (k INT64)")
        stand_in.run(f"CREATE VIEW w AS SELECT k FROM `{PROJECT}.{stand_in.dataset}.u`")

    with running(tmp_path, signal.SIGKILL, stand_in.dataset) as again:
        assert [table.table_id for table in again.client.list_tables(again.dataset)] == ["u", "w"]
        again.run("INSERT u VALUES (7)")
        assert again.run("SELECT * FROM w") == [(7,)]
        again.run("CREATE TABLE t (k INT64)")
        assert again.run("SELECT * FROM t") == []


def test_values_of_every_type_are_kept(tmp_path: Path) -> None:
    given = {"b": "1.5", "d": "2024-01-02", "h": "1:2:3", "i": "1-2 3 4:5:6.5", "g": "POINT(1 2)", "j": '{"a": 1}'}
    fields = {"k": "int64", **dict.fromkeys(given, "string"), **CHANGE}
    with running(tmp_path, signal.SIGKILL) as stand_in:
        stand_in.run(
            "CREATE TABLE t (k INT64, b BIGNUMERIC, d DATETIME, h TIME, i INTERVAL, g GEOGRAPHY, j JSON, "
            "s STRUCT<r RANGE<TIMESTAMP>, j ARRAY<JSON>>, PRIMARY KEY (k) NOT ENFORCED) "
            "OPTIONS (max_staleness = INTERVAL 10 MINUTE)"
        )
        stand_in.run("INSERT INTO t (k, s) VALUES (1, STRUCT(CAST(NULL AS RANGE<TIMESTAMP>), [JSON '2']))")
        stand_in.append("t", fields, [change("UPSERT", "1", k=2, **given)])
        schema = stand_in.client.get_table(f"{stand_in.dataset}.t").schema

    with running(tmp_path, signal.SIGKILL, stand_in.dataset) as again:
        assert again.client.get_table(f"{again.dataset}.t").schema == schema
        again.control("POST", "applies/run")
        [(key, *nothing, record), (_, *values, _)] = again.run("SELECT * FROM t ORDER BY k")
        assert (key, nothing, record) == (1, [None] * 6, {"r": None, "j": [2]})
        assert [str(value) for value in values] == [
            "1.5",
            "2024-01-02 00:00:00",
            "01:02:03",
            "relativedelta(years=+1, months=+2, days=+3, hours=+4, minutes=+5, seconds=+6, microseconds=+500000)",
            "POINT(1 2)",
            "{'a': 1}",
        ]
