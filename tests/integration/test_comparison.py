"""A history in BigQuery (the stand-in) beside what was written: equal where it is, and what differs is named."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from deploy.local.platform.target import BigQueryDataset
from deploy.local.proof.comparison import TableShape
from deploy.local.proof.history import Written, compare_history
from shared.contracts.timestamps import Nanoseconds
from tests.conftest import PROJECT

pytestmark = pytest.mark.integration


@pytest.fixture
def dataset(bigquery_stand_in: tuple[str, str]) -> Iterator[BigQueryDataset]:
    dataset = BigQueryDataset(bigquery_stand_in[0], PROJECT, "comparison")
    dataset.create()
    yield dataset
    dataset.close()


def test_a_history_that_lacks_a_change_or_shows_another_present_is_found(dataset: BigQueryDataset) -> None:
    at = [f"2013-01-01 12:00:0{second}+00:00" for second in range(4)]
    for statement in (
        "DROP VIEW IF EXISTS kept_history",
        "DROP TABLE IF EXISTS kept_changelog",
        "DROP TABLE IF EXISTS kept",
        "CREATE TABLE kept (k INT64, v STRING, _millrace_sequence STRING, _millrace_commit_timestamp TIMESTAMP)",
        """CREATE TABLE kept_changelog (k INT64, v STRING, valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOL,
           _millrace_sequence STRING)""",
        f"INSERT INTO kept VALUES (1, 'b', 'B', TIMESTAMP '{at[1]}')",
        f"""INSERT INTO kept_changelog VALUES (1, 'a', TIMESTAMP '{at[0]}', TIMESTAMP '{at[1]}', FALSE, 'A'),
            (1, 'b', TIMESTAMP '{at[1]}', NULL, TRUE, 'B'), (1, 'b', TIMESTAMP '{at[1]}', NULL, TRUE, 'B'),
            (2, 'x', TIMESTAMP '{at[0]}', TIMESTAMP '{at[2]}', FALSE, 'A')""",
        "CREATE VIEW kept_history AS SELECT DISTINCT * FROM comparison.kept_changelog",
    ):
        dataset.query(statement)
    shape = TableShape("kept", {"k": "INT64", "v": "STRING"}, ["k"])

    noon = Nanoseconds(int(datetime(2013, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000_000)
    second = 1_000_000_000
    written: Written = {
        (1,): [(noon, {"k": 1, "v": "a"}), (Nanoseconds(noon + second), {"k": 1, "v": "b"})],
        (2,): [(noon, {"k": 2, "v": "x"}), (Nanoseconds(noon + 2 * second), None)],
    }

    right = compare_history(shape, written, dataset, 3)
    assert right.equal, right.result.named
    assert (right.changes, right.rows, right.versions) == (3, 4, 3)
    assert [[version.row["v"] for version in versions] for versions in right.examples] == [["a", "b"]]

    assert compare_history(shape, written, dataset, 4).result.named == [
        "kept_changelog: 3 different changes, and 4 were committed"
    ]
    blanked = {**written, (1,): [(noon, {"k": 1, "v": None}), written[1,][1]]}
    (named,) = compare_history(shape, blanked, dataset, 3).result.named
    assert named.startswith(f"kept_history[1, {at[0]}]: v is 'a' in BigQuery and None in what was written")
    (named,) = compare_history(shape, {**written, (2,): written[2,][:1]}, dataset, 3).result.named[:1]
    assert named.startswith(f"kept_history[2, {at[0]}]: valid_to is ")
    more = {**written, (3,): [(noon, {"k": 3, "v": "c"})]}
    (named,) = compare_history(shape, more, dataset, 3).result.named
    assert named == f"kept_history[3, {at[0]}]: in what was written and not in BigQuery"
    dataset.query(f"UPDATE kept SET _millrace_commit_timestamp = TIMESTAMP '{at[3]}' WHERE TRUE")
    (named,) = compare_history(shape, written, dataset, 3).result.named
    assert named == "kept_history[1]: current since another commit than the mirror's"
    absent = compare_history(TableShape("gone", shape.columns, shape.key), {}, dataset, 0)
    assert absent.result.named == ["gone_history: no such view in BigQuery"]
