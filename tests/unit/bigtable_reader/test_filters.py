"""What is watched: rows by prefix, families by pattern, and what asks for a row to be read back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.stream.records import DeleteFamily, UnknownEntry
from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from tests.unit.bigtable_reader.stream_messages import a_cell, a_change


def test_rows_are_watched_by_their_prefixes() -> None:
    watched = Watched(BigtableOptions(key_prefixes=("a#", "é")))

    assert [watched.row(key) for key in (b"a#1", "éa".encode(), b"a", b"b")] == [True, True, False, False]
    assert Watched(BigtableOptions()).row(b"\xff")


@pytest.mark.parametrize("kind", ["USER", "GARBAGE_COLLECTION"])
def test_a_row_outside_the_prefixes_is_never_read_back_nor_logged(kind: str) -> None:
    watched = Watched(BigtableOptions(key_prefixes=("a",)))
    record = a_change(a_cell(), row_key=b"b", kind=kind)

    assert not watched.calls_for_image(record)
    assert watched.entries(record) == ()


def test_only_what_touches_a_watched_family_asks_for_the_row() -> None:
    watched = Watched(BigtableOptions(families=("f*",), excluded_families=("fx",)))

    assert watched.calls_for_image(a_change(a_cell("g"), DeleteFamily("fa")))
    assert watched.calls_for_image(a_change(UnknownEntry("MUTATION_9", "", b"")))
    assert not watched.calls_for_image(a_change(a_cell("g"), a_cell("fx")))


def test_garbage_collection_always_asks_for_the_row() -> None:
    options = BigtableOptions(families=("f",), garbage_collection="exclude")

    assert Watched(options).calls_for_image(a_change(DeleteFamily("other"), kind="GARBAGE_COLLECTION"))


def test_a_declared_column_makes_its_family_watched_but_no_json_column() -> None:
    options = BigtableOptions(families=(), columns=(CellColumn(name="c", family="f", qualifier=b"q"),))
    watched = Watched(options)

    assert watched.family("f")
    assert not watched.as_json("f")
    assert watched.calls_for_image(a_change(a_cell("f", b"other")))


def test_a_family_with_a_column_of_its_own_is_a_json_column_whatever_the_patterns_say() -> None:
    watched = Watched(BigtableOptions(families=("a",), columns=(FamilyColumn(name="bee", family="b"),)))

    assert watched.as_json("b")
    assert watched.family_pattern() == "a|b"


def test_an_excluded_family_is_excluded_also_where_it_has_a_name_of_its_own() -> None:
    watched = Watched(BigtableOptions(excluded_families=("b",), columns=(FamilyColumn(name="bee", family="b"),)))

    assert not watched.as_json("b")
    assert not watched.family("b")


def test_entries_keep_their_places() -> None:
    watched = Watched(BigtableOptions(families=("f",), excluded_columns=(("f", b"x"),)))
    record = a_change(a_cell("g"), a_cell("f", b"x"), a_cell("f", b"y"), DeleteFamily("f"))

    assert [index for index, _entry in watched.entries(record)] == [2, 3]


names = st.text("ab.-_", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.text("ab.?*", min_size=1, max_size=4), min_size=1, max_size=3), st.lists(names, max_size=2), names)
def test_the_servers_filter_lets_every_watched_family_through(
    patterns: list[str], excluded: list[str], name: str
) -> None:
    watched = Watched(BigtableOptions(families=tuple(patterns), excluded_families=tuple(excluded)))
    expression = watched.family_pattern()

    if watched.family(name):
        assert expression is None or re.fullmatch(expression, name)
    elif name not in excluded:
        assert expression is not None
        assert not re.fullmatch(expression, name)


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        (BigtableOptions(versions=3), False),
        (BigtableOptions(key_prefixes=("a",), columns=(FamilyColumn(name="bee", family="b"),)), False),
        (BigtableOptions(versions=3, columns=(CellColumn(name="c", family="f", qualifier=b"q"),)), True),
        (BigtableOptions(excluded_columns=(("f", b"q"),)), True),
        (BigtableOptions(excluded_families=("f",)), True),
        (BigtableOptions(families=("g*",)), True),
    ],
)
def test_cells_are_asked_about_where_an_image_leaves_some_of_what_is_read_out(
    options: BigtableOptions, asks: bool
) -> None:
    watched = Watched(options)

    assert (watched.versions_kept is not None) == asks
    assert (watched.versions_in_image("f", b"q") is not None) == asks
