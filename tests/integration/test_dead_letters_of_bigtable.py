"""What the Bigtable reader sets aside: through the real collector, read twice, and replayed as it came."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.platform.processes import Processes
from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import State, StoredDeadLetter
from services.dead_letter.core.selection import Selection
from services.dead_letter.wiring.commands import command
from shared.contracts.change_batch import decode_batch
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.integration.bigtable_front import Front, set_cell
from tests.integration.pubsub_topics import a_topology, pull
from tests.worlds.bigtable_pipeline import BigtablePipeline
from tests.worlds.dead_letter_service import TIMEOUT, DeadLetterService

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NO_TEXT = b"\xff\xfe"


@pytest.fixture
def parts(
    front: Front, pubsub_emulator: str, channel: grpc.Channel, new_processes: Processes, tmp_path: Path
) -> tuple[BigtablePipeline, DeadLetterService]:
    """Return a reader's pipeline, and the dead-letter service behind it."""
    topology = a_topology(channel)
    pipeline = BigtablePipeline(front.table("f"), pubsub_emulator, channel, topology, new_processes)
    return pipeline, DeadLetterService(channel, pubsub_emulator, topology, new_processes, tmp_path / "letters.sqlite3")


def kept(service: DeadLetterService) -> Mapping[Reason, StoredDeadLetter]:
    """Return the dead letters that are in the store, by reason."""
    if not service.file.exists():
        return {}
    with closing(open_database(service.database)) as database:
        found = list(SqlDeadLetterStore(database).in_replay_order(Selection()))
    assert len({one.dead_letter.reason for one in found}) == len(found)
    return {one.dead_letter.reason: one for one in found}


def test_what_it_cannot_make_a_change_of_is_the_same_dead_letter_when_read_again_and_is_replayed_as_it_came(
    parts: tuple[BigtablePipeline, DeadLetterService], tmp_path: Path
) -> None:
    pipeline, service = parts
    since = pipeline.table.since
    tables = tmp_path / "tables.toml"
    tables.write_text('[defaults]\nmode = "history"\n', encoding="utf-8")
    reading = {"TABLES_FILE": str(tables), "START_TIMESTAMP": format_timestamp(Nanoseconds(since * 1_000))}
    pipeline.table.write(b"good", set_cell("f", b"q", b"1"))
    pipeline.table.write(NO_TEXT, set_cell("f", b"q", b"2"))  # a key that is no text
    pipeline.table.write(b"bad", set_cell("f", NO_TEXT, b"3"))  # a column that is none
    wanted = {Reason.KEY_NOT_REPRESENTABLE, Reason.VALUE_DOES_NOT_FIT}

    service.start()
    reader = pipeline.start(**reading)
    service.processes.wait_until(lambda: kept(service).keys() == wanted or None, "two dead letters", TIMEOUT)
    first = kept(service)
    reader.kill()
    pipeline.partitions += "-anew"  # another reader, that knows nothing of what this one did
    pipeline.start(**reading)
    service.processes.wait_until(
        lambda: {one.attempts for one in kept(service).values()} == {2} or None, "both to be read once more", TIMEOUT
    )

    again = kept(service)
    for reason, one in first.items():
        assert (again[reason].id, again[reason].state, again[reason].replays) == (one.id, State.OPEN, 0)
        assert again[reason].dead_letter.data == one.dead_letter.data
        assert one.dead_letter.failed_in == "bigtable_reader"
        assert not one.without_payload
        assert b"Mw==" in one.dead_letter.data or b"Mg==" in one.dead_letter.data, "what was written is kept, as base64"

    # A replay publishes what was kept, byte for byte; no consumer makes more of it than the reader did, and it is the
    # reader that is to be told how to take such keys and columns (TABLES_FILE), so they are discarded.
    pull(pipeline.channel, pipeline.topology.subscription)
    environment: Mapping[str, Any] = {
        "GOOGLE_CLOUD_PROJECT": "millrace-test",
        "PUBSUB_EMULATOR_HOST": service.pubsub,
        "TOPIC": pipeline.topology.topic,
        "DATABASE": service.database,
        "MILLRACE_USER": "ada",
    }
    assert command(["replay", "--all", "--execute"], environment) == 0
    arrived = {
        one.message.attributes["replay_of"]: one.message
        for one in pull(pipeline.channel, pipeline.topology.subscription)
        if "replay_of" in one.message.attributes
    }
    assert arrived.keys() == {one.id for one in first.values()}
    for one in first.values():
        message = arrived[one.id]
        assert (message.data, message.ordering_key) == (one.dead_letter.data, one.dead_letter.ordering_key)
        batch = decode_batch(message.data)
        assert (batch.header.table, batch.sequence) == (one.dead_letter.table, [one.dead_letter.sequence])
        assert json.loads(bytes(batch.old[0]))
    assert command(["discard", "--all", "--state", "replayed", "--why", "the tables file"], environment) in (1, 3)
