"""A deletion of the missing rows of a mirror beside which a history is kept: there, too, what is gone is gone."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.cdc_consumer.adapters.bigquery.mirror_labels import COMPLETE_SINCE
from shared.contracts.mirrors import HISTORY_OF
from tests.integration.mirror_with_missing_rows import GONE, LIVING, NEWER, Mirror
from tests.integration.stand_in import PROJECT, StandIn

pytestmark = pytest.mark.integration

T = time.time_ns() // 1_000
"""Complete since: BigQuery takes no row into a partition of a far future."""
Version = tuple[int, str, int | None, bool]


@pytest.fixture
def mirror(bigquery_stand_in: tuple[str, str], tmp_path: Path) -> Iterator[Mirror]:
    file = tmp_path / "tables.toml"
    file.write_text('[defaults]\nmode = "both"\n')
    found = Mirror(StandIn(bigquery_stand_in), bigquery_stand_in, file)
    found.write(NEWER, T)
    found.write(GONE, T - 7)
    found.write(LIVING, T - 7)
    found.label(**{COMPLETE_SINCE: str(T)})
    yield found
    found.stand_in.client.delete_dataset(found.stand_in.dataset, delete_contents=True)


def delete_missing_rows(mirror: Mirror, *arguments: str) -> tuple[int, Mapping[str, Any]]:
    return mirror.delete_missing_rows(*arguments, before=T)


def versions(mirror: Mirror, keys: range) -> list[Version]:
    return [
        (key, note, until, current)
        for key, note, until, current in mirror.stand_in.run(
            "SELECT Id, Note, UNIX_MICROS(valid_to), is_current FROM Things_history "
            f"WHERE Id BETWEEN {keys[0]} AND {keys[-1]} ORDER BY Id, valid_from"
        )
    ]


def test_the_last_version_of_a_missing_row_ends_just_before_the_snapshot(mirror: Mirror) -> None:
    assert delete_missing_rows(mirror)[1]["gone"] == len(GONE)
    assert {current for *_version, current in versions(mirror, GONE)} == {True}, "nothing is done without --execute"

    code, answer = delete_missing_rows(mirror, "--execute")
    assert (code, answer["deleted"], answer["in_source"], answer["left"]) == (1, 5, 3, 0)
    assert versions(mirror, GONE) == [(key, f"note {key}", T - 1, False) for key in GONE]
    for others in (LIVING, NEWER):
        assert versions(mirror, others) == [(key, f"note {key}", None, True) for key in others]
    statements = mirror.stand_in.run(
        "SELECT DISTINCT _metadata_spanner_mod_type, _metadata_spanner_table_name, "
        "UNIX_MICROS(_metadata_spanner_commit_timestamp) FROM Things_changelog WHERE Id >= 2000 AND Note IS NULL"
    )
    assert statements == [("DELETE", "Things", T - 1)]


def test_one_that_comes_back_is_current_again_and_is_deleted_once_however_often(mirror: Mirror) -> None:
    delete_missing_rows(mirror, "--execute")
    mirror.write(GONE[:1], T - 7)  # a message that comes once more: the mirror remembers the delete
    mirror.write(GONE[1:2], T + 5)
    mirror.stand_in.run("INSERT INTO Things (Id, Note) VALUES (2003, 'a stranger has put it there again')")
    delete_missing_rows(mirror, "--execute")

    assert versions(mirror, GONE) == [
        (2000, "note 2000", T - 1, False),
        (2001, "note 2001", T - 1, False),
        (2001, "note 2001", None, True),
        *((key, f"note {key}", T - 1, False) for key in GONE[2:]),
    ]


def test_a_table_that_is_no_history_of_the_same_source_is_left_alone(mirror: Mirror) -> None:
    table = mirror.stand_in.client.get_table(f"{PROJECT}.{mirror.stand_in.dataset}.Things_changelog")
    table.labels = {**table.labels, HISTORY_OF: "another"}
    mirror.stand_in.client.update_table(table, ["labels"])

    assert delete_missing_rows(mirror, "--execute")[1]["deleted"] == 5
    assert mirror.stand_in.run("SELECT COUNT(*) FROM Things_changelog") == [(len([*GONE, *LIVING, *NEWER]),)]
    assert {current for *_version, current in versions(mirror, GONE)} == {True}
