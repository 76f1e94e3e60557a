"""What readers complete and reconstruct, through the consumer's worker into the BigQuery stand-in.

The changes are those of random histories, from readers on fakes in virtual time; here they come in any order, and some
come again.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import grpc
import pytest
from google.cloud import bigquery

from shared.contracts.tables_file import Mode
from tests.builders import a_message
from tests.fakes.virtual_time import run_in_virtual_time
from tests.integration.stand_in import PROJECT, StandIn
from tests.unit.spanner_reader.captured_histories import play
from tests.unit.spanner_reader.capturing import (
    SINGERS,
    CapturedDatabase,
    CapturingWorld,
    Row,
    is_reconstructed,
    key_of,
    set_values,
)
from tests.worlds.history_consumer import FedConsumer

pytestmark = pytest.mark.integration

HISTORIES = {11: timedelta(hours=1), 0: timedelta(seconds=1), 13: timedelta(seconds=1), 24: timedelta(seconds=1)}
"""Seeds of histories, and how long their rows of then can be read: these complete and reconstruct more than others."""
KINDS = ("altering", "reshaping")


@pytest.mark.parametrize(
    ("capture", "mode"),
    [
        *product(("NEW_VALUES", "OLD_AND_NEW_VALUES"), ("mirror", "both")),
        ("OLD_AND_NEW_VALUES", "history"),
    ],
)
def test_mirror_and_history_end_right_and_the_history_marks_what_was_reconstructed(
    bigquery_stand_in: tuple[str, str], storage: grpc.Channel, capture: str, mode: Mode
) -> None:
    reconstructed = completed = 0
    for seed, retention in HISTORIES.items():
        database = CapturedDatabase(capture, retention, unwatched=frozenset({"unwatched"}))
        world = CapturingWorld(Random(seed), database, mode)
        run_in_virtual_time(play(world, KINDS))
        completed += world.world.metrics.completed_changes[0]
        reconstructed += sum(is_reconstructed(change) for _header, change in world.published)
        stand_in = StandIn(bigquery_stand_in)
        deliver(world, FedConsumer(stand_in, bigquery_stand_in[0], storage, f'[defaults]\nmode = "{mode}"'))

        names = dict(database.now.columns or ())
        if mode != "history":
            assert {row["Id"]: values(row, names) for row in rows_of(stand_in, SINGERS)} == database.now.watched_rows
        if mode != "mirror":
            current = [row for row in rows_of(stand_in, f"{SINGERS}_history") if row["is_current"]]
            assert {row["Id"]: values(row, names) for row in current} == database.now.watched_rows
            check_versions(world, rows_of(stand_in, f"{SINGERS}_changelog"))
    assert completed > 10
    assert reconstructed > 5


def deliver(world: CapturingWorld, consumer: FedConsumer) -> None:
    """Let all that was published come in any order, a third of it twice."""
    messages = [a_message(*changes, header=header) for header, changes in world.world.topic.batches]
    messages += world.chance.sample(messages, len(messages) // 3)
    world.chance.shuffle(messages)
    for start in range(0, len(messages), 20):
        consumer.apply(*messages[start : start + 20])


def check_versions(world: CapturingWorld, changelog: Sequence[Mapping[str, Any]]) -> None:
    """Check that each change is there, and each version that is not marked is the one that was true."""
    assert {(row["Id"], row["_millrace_sequence"]) for row in changelog} == world.database.truth.keys()
    reconstructed = set()
    for row in changelog:
        place = row["Id"], row["_millrace_sequence"]
        if row["_millrace_reconstructed"]:
            reconstructed.add(place)
        elif row["_metadata_spanner_mod_type"] != "DELETE":
            names = [name for name in row if not name.startswith("_") and name != "Id"]
            assert set_values(values(row, names)) == set_values(world.database.truth[place]), row
    assert reconstructed == {(key_of(one), one.sequence) for _header, one in world.published if is_reconstructed(one)}


def rows_of(stand_in: StandIn, table: str) -> Sequence[Mapping[str, Any]]:
    config = bigquery.QueryJobConfig(default_dataset=f"{PROJECT}.{stand_in.dataset}")
    found = stand_in.client.query_and_wait(f"SELECT * FROM `{table}` ORDER BY Id", job_config=config)
    return [dict(row.items()) for row in found]


def values(row: Mapping[str, Any], names: Iterable[str]) -> Row:
    return {name: row.get(name) for name in names}
