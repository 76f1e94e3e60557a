"""Histories on the stand-in: what the view says is what happened, in whatever order and however often it came."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.cloud import bigquery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shared.contracts.change_batch import Change, Header
from tests.builders import PLANE_COLUMNS, a_header, a_message
from tests.integration.stand_in import PROJECT, StandIn
from tests.worlds.history_consumer import BOTH, Fed, a_plane, at

pytestmark = pytest.mark.integration

_numbers = itertools.count()

Version = tuple[int, str | None, datetime, datetime | None, bool]


def history(stand_in: StandIn, table: str) -> list[Version]:
    found = stand_in.run(f"SELECT id, name, valid_from, valid_to, is_current FROM `{table}_history` ORDER BY 1, 3")
    return [(row[0], row[1], row[2], row[3], row[4]) for row in found]


@dataclass(frozen=True)
class Step:
    identity: int
    second: int
    index: int
    delete: bool

    @property
    def change(self) -> Change:
        return a_plane(self.identity, self.second, self.index, name=self.name, delete=self.delete)

    @property
    def name(self) -> str:
        return f"{self.second}/{self.index}"


def reference(steps: Sequence[Step]) -> list[Version]:
    """Return what was to be seen when, told from the changes in their true order."""
    versions: list[Version] = []
    for identity in sorted({step.identity for step in steps}):
        last: dict[int, Step] = {}  # by commit: the last change of a transaction is what it leaves behind
        for step in sorted((s for s in steps if s.identity == identity), key=lambda s: (s.second, s.index)):
            last[step.second] = step
        left = list(last.values())
        for step, following in itertools.zip_longest(left, left[1:]):
            if not step.delete:
                until = at(following.second) if following else None
                versions.append((identity, step.name, at(step.second), until, until is None))
    return versions


STEPS = st.lists(
    st.builds(Step, st.integers(1, 3), st.integers(0, 5), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=25,
    unique_by=lambda step: (step.identity, step.second, step.index),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), steps=STEPS)
def test_the_view_is_what_happened_whatever_was_repeated_and_reordered(
    stand_in: StandIn, fed: Fed, data: st.DataObject, steps: list[Step]
) -> None:
    table = f"planes{next(_numbers)}"
    consumer, header = fed(), a_header(table)
    repeated = data.draw(st.lists(st.sampled_from(steps), max_size=10))
    delivered = data.draw(st.permutations([*steps, *repeated]))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(delivered)), max_size=3)) | {len(delivered)})

    for start, end in itertools.pairwise([0, *cuts]):
        consumer.apply(a_message(*(step.change for step in delivered[start:end]), header=header))

    assert history(stand_in, table) == reference(steps)
    current = {(identity, name) for identity, name, _, _, is_current in reference(steps) if is_current}
    assert set(stand_in.run(f"SELECT id, name FROM `{table}`")) == current


def test_a_history_is_made_as_google_names_it_partitioned_and_without_a_key(stand_in: StandIn, fed: Fed) -> None:
    fed().apply(a_message(a_plane(1, 1, name="a"), header=a_header("sales.made")))

    table = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.sales_made_changelog")
    assert table.time_partitioning.type_ == "DAY"
    assert table.time_partitioning.field == "_metadata_spanner_commit_timestamp"
    assert table.clustering_fields == ["id"]
    assert table.table_constraints is None or table.table_constraints.primary_key is None
    (row,) = stand_in.client.query_and_wait(f"SELECT * FROM `{stand_in.dataset}.sales_made_changelog`")
    values: dict[str, Any] = dict(row)
    assert values.pop("_metadata_big_query_commit_timestamp") > at(-365 * 86_400)
    assert values == {
        "id": 1,
        "name": "a",
        "seats": None,
        "_metadata_spanner_mod_type": "UPDATE",
        "_metadata_spanner_table_name": "sales.made",
        "_metadata_spanner_commit_timestamp": at(1),
        "_metadata_spanner_server_transaction_id": "t1",
        "_metadata_spanner_record_sequence": "00000000",
        "_metadata_spanner_is_last_record_in_transaction_in_partition": None,
        "_metadata_spanner_number_of_records_in_transaction": None,
        "_metadata_spanner_number_of_partitions_in_transaction": None,
        "_metadata_spanner_transaction_tag": None,
        "_metadata_spanner_is_system_transaction": None,
        "_millrace_old_values": None,
        "_millrace_reconstructed": None,
        "_millrace_sequence": a_plane(1, 1).sequence,
    }


def test_a_new_column_widens_the_table_and_the_view(stand_in: StandIn, fed: Fed) -> None:
    def header(*more: str) -> Header:
        return a_header("wide", columns=(*PLANE_COLUMNS, *((name, "STRING") for name in more)))

    first, second = fed(), fed()
    first.apply(a_message(a_plane(1, 1, name="a"), header=header()))
    second.apply(a_message(a_plane(1, 2, name="a", colour="red"), header=header("colour")))
    first.apply(a_message(a_plane(1, 3, name="a", size="xl"), header=header("size")))
    first.apply(a_message(a_plane(1, 4, name="b"), header=header()))

    assert stand_in.run("SELECT colour, size, valid_from FROM wide_history ORDER BY valid_from") == [
        (None, None, at(1)),
        ("red", None, at(2)),
        (None, "xl", at(3)),
        (None, None, at(4)),
    ]


def test_a_history_of_before_gets_the_column_that_shows_what_was_reconstructed(stand_in: StandIn, fed: Fed) -> None:
    def change(second: int, name: str, place: str) -> Change:
        return structs.replace(a_plane(1, second, name=name), place=place)

    fed().apply(a_message(a_plane(1, 1, name="a"), header=a_header("early")))
    path = f"{PROJECT}.{stand_in.dataset}.early_changelog"
    made = stand_in.client.get_table(path)
    earlier = bigquery.Table(path, [field for field in made.schema if field.name != "_millrace_reconstructed"])
    earlier.labels, earlier.description = made.labels, made.description
    earlier.time_partitioning, earlier.clustering_fields = made.time_partitioning, made.clustering_fields
    stand_in.client.delete_table(path)
    stand_in.client.create_table(earlier)
    changes = [change(2, "later", '{"reconstructed":true}'), change(2, "then", "{}"), a_plane(1, 3, name="c")]
    fed().apply(*(a_message(one, header=a_header("early")) for one in changes))

    shown = "SELECT name, _millrace_reconstructed FROM early_changelog ORDER BY name"
    assert stand_in.run(shown) == [("c", None), ("later", True), ("then", None)]
    assert stand_in.run("SELECT name FROM early_history ORDER BY valid_from") == [("then",), ("c",)]


def test_something_else_by_the_views_name_is_left_alone_and_nothing_waits_for_it(stand_in: StandIn, fed: Fed) -> None:
    stand_in.run("CREATE VIEW taken_history AS SELECT 1 AS mine")
    fed().apply(a_message(a_plane(1, 1), header=a_header("taken")))

    assert stand_in.run("SELECT * FROM taken_history") == [(1,)]
    assert stand_in.run("SELECT id FROM taken_changelog") == [(1,)]


KEY = {
    "kb": ("BOOL", True),
    "ki": ("INT64", "7"),
    "kn": ("NUMERIC", "1.50"),
    "ks": ("STRING", "k"),
    "ky": ("BYTES", "AP9h"),
    "kd": ("DATE", "2026-11-21"),
    "kt": ("TIMESTAMP", "2026-11-21T12:00:00.5Z"),
    "kf": ("FLOAT64", 1.5),
    "ku": ("UUID", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
}
REST = {
    "s": ("STRING", 'te"xt'),
    "j": ("JSON", '{"a": [1, null]}'),
    "g": ("FLOAT32", 1.1),
    "p": ("PG_NUMERIC", "NaN"),
    "y": ("BYTES", "AP9h"),
    "ai": ("ARRAY<INT64>", ["1", "2"]),
    "as": ("ARRAY<STRING>", ["a", None, 'b"\n']),
    "af": ("ARRAY<FLOAT64>", [1.5, None, "NaN"]),
    "ad": ("ARRAY<DATE>", ["2026-11-21", None]),
}


def test_every_type_in_keys_and_columns_and_arrays_that_hold_null(stand_in: StandIn, fed: Fed) -> None:
    header = a_header("types", columns=[(name, kind) for name, (kind, _) in (KEY | REST).items()], key=list(KEY))
    texts = {
        name: json.dumps({each: value for each, (_, value) in of.items()}) for name, of in (("k", KEY), ("r", REST))
    }
    changes = [structs.replace(a_plane(1, second), key=texts["k"], row=texts["r"]) for second in (1, 2)]
    tables = BOTH + '\njson_arrays = ["as", "af", "ad"]'
    fed(tables).apply(a_message(*changes, header=header))

    names = ", ".join(f"`{name}`" for name in KEY | REST)
    (mirrored,) = stand_in.run(f"SELECT {names} FROM types")
    assert stand_in.run(f"SELECT {names} FROM types_history") == [mirrored, mirrored]
    assert mirrored[-4:] == ([1, 2], ["a", None, 'b"\n'], [1.5, None, "NaN"], ["2026-11-21", None])
    assert stand_in.run("SELECT valid_from, is_current FROM types_history ORDER BY 1") == [
        (at(1), False),
        (at(2), True),
    ]


def test_soft_delete_keeps_the_row_and_old_changes_lose_against_it(stand_in: StandIn, fed: Fed) -> None:
    header, soft = a_header("soft"), "[defaults]\nsoft_delete = true"
    fed("").apply(a_message(a_plane(1, 1, name="a"), a_plane(2, 1, name="b"), a_plane(3, 1, name="c"), header=header))
    consumer = fed(soft)
    gone = structs.replace(a_plane(1, 3, delete=True), old=json.dumps({"name": "last", "seats": "7"}))
    consumer.apply(a_message(gone, a_plane(2, 3, delete=True), header=header))
    consumer.apply(a_message(a_plane(1, 2, name="late"), a_plane(2, 4, name="again"), header=header))

    assert stand_in.run("SELECT id, name, seats, _millrace_deleted FROM soft ORDER BY id") == [
        (1, "last", 7, True),
        (2, "again", None, False),
        (3, "c", None, None),
    ]


def test_a_history_of_a_table_whose_key_bigquery_cannot_have_tells_its_rows_apart(stand_in: StandIn, fed: Fed) -> None:
    """With more than 16 columns in the key, one of them of a type that is not known."""
    key = [("id", "TIME"), *((f"k{number}", "INT64") for number in range(16))]
    header = a_header("keyless", columns=[*key, ("name", "STRING")], key=[name for name, _kind in key])
    rest_of_key = {f"k{number}": "7" for number in range(16)}

    def of_key(change: Change, identity: str) -> Change:
        return structs.replace(change, key=json.dumps({"id": identity, **rest_of_key}))

    changes = [of_key(a_plane(1, second, name=f"{second}"), identity) for identity in "ab" for second in (1, 2)]
    consumer = fed('[defaults]\nunfit_key = "history"')
    consumer.apply(a_message(*changes, of_key(a_plane(1, 3, delete=True), "b"), header=header))

    found = stand_in.run("SELECT id, name, is_current FROM keyless_history ORDER BY id, valid_from")
    assert [tuple(row) for row in found] == [("a", "1", False), ("a", "2", True), ("b", "1", False), ("b", "2", False)]
    with pytest.raises(NotFound):
        stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.keyless")
