"""Masked and renamed columns through the consumer's processes: one key, one digest, and what a missing key stops."""

import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from services.cdc_consumer.adapters.bigquery.mirror_labels import NEEDS_RESYNC
from services.cdc_consumer.ports import MASKS_CHANGED
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_message
from tests.integration.answering_source import HEADER, ROWS
from tests.integration.log_lines import events
from tests.integration.mirror_with_missing_rows import Mirror
from tests.integration.stand_in import StandIn
from tests.worlds.consumer import TIMEOUT, World, acks, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
TABLES = """\
mask_key_file = "{key}"

[tables.Things]
mode = "both"
masked_columns = {{ Note = "sha256" }}
renamed_columns = {{ Note = "digest" }}
"""
LIVE = structs.replace(HEADER, origin="stream")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mask.key").write_bytes(KEY + b"\n")
    (tmp_path / "tables.toml").write_text(TABLES.format(key=tmp_path / "mask.key"), encoding="utf-8")
    return tmp_path / "tables.toml"


def changes(keys: Iterable[int]) -> Sequence[Change]:
    """Return a change of each thing, with the row that the source has, before and after."""
    now = Nanoseconds(time.time_ns())
    rows = {str(key): json.dumps({"Note": ROWS[str(key)]}) for key in keys}
    sequence, committed = str(four_sections(now // 1_000)), format_timestamp(now)
    return [
        Change("UPSERT", "UPDATE", sequence, committed, "{}", json.dumps({"Id": key}), row, row)
        for key, row in rows.items()
    ]


def replayed(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "attributes": [*message["attributes"], ("replay_of", "1"), ("replay_forced", "true")]}


def digest(key: bytes, thing: int) -> str:
    return hmac.new(key, ROWS[str(thing)].encode(), hashlib.sha256).hexdigest()


def mirror_of(world: World, file: Path) -> Mirror:
    addresses = (world.pipeline.bigquery_rest, world.pipeline.bigquery_grpc)
    return Mirror(StandIn(addresses, world.pipeline.dataset), addresses, file)


def test_live_snapshot_and_replayed_rows_have_one_digest_in_mirror_and_history_and_equal_the_source(
    world: World, file: Path
) -> None:
    consumer = world.start("consumer", TABLES_FILE=str(file))
    world.publish(
        a_message(*changes(range(1, 4)), header=LIVE),
        replayed(a_message(*changes(range(4, 7)), header=LIVE)),
        a_message(*changes(range(7, len(ROWS) + 1)), header=HEADER),
    )
    world.processes.wait_until(acks(consumer, 3), "every message to be acked", TIMEOUT)
    mirror = mirror_of(world, file)

    expected = [(thing, digest(KEY, thing)) for thing in range(1, len(ROWS) + 1)]
    for table in ("Things", "Things_changelog"):
        assert mirror.stand_in.run(f"SELECT Id, digest FROM {table} ORDER BY Id") == expected
    old = mirror.stand_in.run(
        "SELECT Id, JSON_VALUE(_millrace_old_values, '$.digest') FROM Things_changelog ORDER BY Id"
    )
    assert old == expected
    code, text = mirror.reconcile("Things")
    assert code == 0, text
    assert ends(consumer) == 0


def test_another_key_is_pending_resync_and_a_missing_one_stops_the_start_with_nothing_lost(
    world: World, file: Path, tmp_path: Path
) -> None:
    consumer = world.start("consumer", TABLES_FILE=str(file))
    key, mirror = tmp_path / "mask.key", mirror_of(world, file)
    world.publish(a_message(*changes([1, 2]), header=LIVE))
    world.processes.wait_until(acks(consumer, 1), "the message to be acked", TIMEOUT)
    assert ends(consumer) == 0

    key.unlink()
    world.publish(a_message(*changes([2, 3]), header=LIVE))
    refused = world.launch("consumer", TABLES_FILE=str(file))
    refused.process.expected_to_end = True
    world.processes.wait_until(lambda: refused.process.exit_code is not None, "the consumer to end", TIMEOUT)
    assert refused.process.exit_code == 2
    (why,) = events(refused.process, "service_misconfigured")
    assert why["error"].startswith(f"line 1 of the tables file: mask_key_file = '{key}' cannot be read")

    key.write_bytes(OTHER_KEY)
    code, text = mirror.reconcile("Things")
    assert (code, "was written with other masks than this command has: line 1 of the tables file" in text) == (2, True)
    consumer = world.start("consumer", TABLES_FILE=str(file))
    world.processes.wait_until(acks(consumer, 1), "what was published meanwhile to be acked", TIMEOUT)

    digests = [(1, digest(KEY, 1)), (2, digest(OTHER_KEY, 2)), (3, digest(OTHER_KEY, 3))]
    assert mirror.stand_in.run("SELECT Id, digest FROM Things ORDER BY Id") == digests
    assert mirror.table.labels[NEEDS_RESYNC] == MASKS_CHANGED
    noticed = events(consumer.process, MASKS_CHANGED)
    assert {(one["table"], one["why"].partition(":")[0]) for one in noticed} == {
        ("Things", "line 1 of the tables file"),
        ("Things_changelog", "line 1 of the tables file"),
    }
    assert ends(consumer) == 0
    assert world.dead_letters() == []
