"""Differences that are repaired: published as the source has them, and looked at until they have come."""

from datetime import timedelta
from pathlib import Path

import pytest

from services.cdc_consumer.app.reconcile.reconcile_report import exit_code
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.unit.cdc_consumer.compared import NOTE, World, kinds, reconciled


def test_what_is_repaired_is_published_as_the_source_has_it_and_looked_at_again(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE, 3: NOTE}, {1: "{}", 2: NOTE, 9: NOTE})

    result = reconciled(world, tmp_path, repair=True)

    assert sorted(world.published) == [(1, NOTE), (3, NOTE), (9, None)]
    assert world.mirror == world.source
    assert (result.repaired, result.equal, exit_code([result])) == (3, True, 0)


def test_what_is_published_and_not_applied_is_not_healed(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {2: NOTE}, consuming=False)

    result = reconciled(world, tmp_path, repair=True)

    assert (kinds(result), result.repaired) == ({1: "missing"}, 0)
    assert "does the consumer run?" in result.not_repaired[-1]


@pytest.mark.parametrize("error", [MisconfiguredError("made-up", "topic gone"), TransientError("UNAVAILABLE")])
def test_what_cannot_be_published_is_said_and_the_differences_are_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("services.cdc_consumer.app.reconcile.reconcile.KEYS", 1)
    monkeypatch.setattr("services.cdc_consumer.app.reconcile.recheck.RETRY_BUDGET", timedelta(0))
    world = World({1: NOTE, 2: NOTE, 3: NOTE}, {3: NOTE}, unpublished={1: error})

    result = reconciled(world, tmp_path, repair=True)

    assert (kinds(result), result.repaired) == ({1: "missing"}, 1)
    assert result.not_repaired == [f"[1] and 0 others were not published: {error}"]


def test_a_source_without_any_of_the_mirrors_rows_deletes_none_of_them(tmp_path: Path) -> None:
    world = World({}, {1: NOTE, 2: NOTE})

    result = reconciled(world, tmp_path, repair=True)

    assert not world.published
    assert set(kinds(result).values()) == {"extra"}
    assert "none is deleted" in result.not_repaired[0]
