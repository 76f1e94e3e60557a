"""Change logs and mirrors of Bigtable rows on the stand-in: what differs in a single cell is found and named."""

from collections.abc import Iterator, Mapping

import pytest

from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC
from deploy.local.platform.cells import Row
from deploy.local.platform.target import BigQueryDataset
from deploy.local.proof.wide_comparison import compare_change_log, compare_wide
from tests.conftest import PROJECT

pytestmark = pytest.mark.integration

CELLS: Mapping[bytes, Row] = {
    b"JFK#1": {"carriers": {b"UA": {2000: b"\0" * 7 + b"\2"}}, "totals": {b"departures": {1000: b"\0" * 7 + b"\7"}}},
}
ENTRY = """(id STRING, row_key STRING, mod_type STRING, column_family STRING, `column` STRING, timestamp TIMESTAMP,
  value BYTES, timestamp_from TIMESTAMP, timestamp_to TIMESTAMP, _millrace_sequence STRING)"""


@pytest.fixture
def dataset(bigquery_stand_in: tuple[str, str]) -> Iterator[BigQueryDataset]:
    dataset = BigQueryDataset(bigquery_stand_in[0], PROJECT, "wide")
    dataset.create()
    for statement in (
        "DROP VIEW IF EXISTS t_changelog_once",
        "DROP TABLE IF EXISTS t_changelog",
        "DROP TABLE IF EXISTS airport_traffic",
    ):
        dataset.query(statement)
    yield dataset
    dataset.close()


def test_a_mirror_equals_the_cells_until_one_of_them_differs(dataset: BigQueryDataset) -> None:
    absent = compare_wide(AIRPORT_TRAFFIC, CELLS, dataset)
    assert absent.named == ["airport_traffic: no such table in BigQuery"]

    dataset.query(
        """CREATE TABLE airport_traffic
        (row_key STRING, departures INT64, minutes_late INT64, totals JSON, carriers JSON)"""
    )
    dataset.query("""INSERT INTO airport_traffic VALUES ('JFK#1', 7, NULL, NULL, JSON '{"UA": "AAAAAAAAAAI="}')""")
    equal = compare_wide(AIRPORT_TRAFFIC, CELLS, dataset)
    assert (equal.named, equal.rows) == ([], 1)

    (named,) = compare_wide(AIRPORT_TRAFFIC, {b"JFK#1": {"totals": CELLS[b"JFK#1"]["totals"]}}, dataset).named
    assert named.startswith("airport_traffic[JFK#1]: carriers is {'UA': 'AAAAAAAAAAI='} in BigQuery and None")


def test_a_change_log_replays_to_the_cells_in_the_order_of_its_sequences(dataset: BigQueryDataset) -> None:
    assert compare_change_log("t", CELLS, dataset).result.named == ["t_changelog_once: no such view in BigQuery"]

    at = "TIMESTAMP_MICROS"
    dataset.query(f"CREATE TABLE t_changelog {ENTRY}")
    dataset.query(
        f"""INSERT INTO t_changelog VALUES
        ('d', 'JFK#1', 'SET_CELL', 'carriers', 'UA', {at}(2000), b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02',
         NULL, NULL, '4'),
        ('a', 'JFK#1', 'SET_CELL', 'carriers', 'UA', {at}(1000), b'old', NULL, NULL, '1'),
        ('c', 'JFK#1', 'DELETE_CELLS', 'carriers', 'UA', NULL, NULL, {at}(1000), {at}(2000), '3'),
        ('b', 'JFK#1', 'SET_CELL', 'totals', 'departures', {at}(1000), b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07',
         NULL, NULL, '2'),
        ('x', 'JFK#9', 'SET_CELL', 'totals', 'departures', {at}(1000), b'x', NULL, NULL, '1'),
        ('y', 'JFK#9', 'DELETE_FAMILY', 'totals', NULL, NULL, NULL, NULL, NULL, '2'),
        ('y', 'JFK#9', 'DELETE_FAMILY', 'totals', NULL, NULL, NULL, NULL, NULL, '2')"""
    )
    dataset.query("CREATE VIEW t_changelog_once AS SELECT DISTINCT * FROM wide.t_changelog")

    log = compare_change_log("t", CELLS, dataset)
    assert (log.equal, log.entries, log.rows) == (True, 6, 7), log.result.named
    assert log.kinds == {"SET_CELL": 4, "DELETE_CELLS": 1, "DELETE_FAMILY": 1}

    without_it = {b"JFK#1": {"totals": CELLS[b"JFK#1"]["totals"]}}
    (named,) = compare_change_log("t", without_it, dataset).result.named
    assert named.startswith("t_changelog_once[JFK#1 carriers:UA 2000]: b'")
    assert named.endswith("replayed and None in Bigtable")
