"""What readers set aside, since no message holds it: through the real collector, and what a person does about it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.local.platform.services import DeadLettersCommand, dead_letters_in, start_dead_letter
from deploy.local.platform.source import Write
from tests.e2e.rig import Rig

pytestmark = pytest.mark.timeout(1_800)

LARGE = 7_000_000
"""Bytes of a value that Spanner takes; as base64 in a change it is more than a message of Pub/Sub has room for."""


class Person:
    """Somebody at the commands of a rig's dead-letter service."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        settings = rig.pipeline.dead_letter_environment(dead_letters_in(rig.processes.directory))
        self._command = DeadLettersCommand({**rig.processes.environment, **settings, "MILLRACE_USER": "ada"})

    def output(self, *words: str, code: int = 0) -> str:
        """Run a command; return what it says."""
        found, printed = self._command(*words)
        assert found == code, (words, printed)
        return printed

    def sees(self, count: int, attempts: int) -> Sequence[Mapping[str, Any]]:
        """Wait until so many dead letters have failed so often; return them."""
        found: list[Mapping[str, Any]] = []

        def there() -> bool:
            code, printed = self._command("list", "--json")
            if code == 0:
                found[:] = json.loads(printed)["dead_letters"]
            return code == 0 and [one["attempts"] for one in found] == [attempts] * count

        self.rig.wait(there, f"{count} dead letters that have failed {attempts} times")
        return found


def test_a_row_too_large_for_any_message_is_one_dead_letter_however_often_it_is_read(rig: Rig, tmp_path: Path) -> None:
    large = Write("insert", "Singers", {"Id": 2, "Name": "two", "Photo": bytes(LARGE)})
    rig.commit(Write("insert", "Singers", {"Id": 1, "Name": "one"}), large, Write("insert", "Tags", {"Tag": "a"}))
    reader, dead_letters = rig.start_reader(), start_dead_letter(rig.processes, rig.pipeline)
    rig.wait_until_ready(reader, dead_letters, rig.consumer())
    person = Person(rig)

    (dead_letter,) = person.sees(1, attempts=1)
    assert (dead_letter["reason"], dead_letter["table"], dead_letter["key"]) == (
        "too_large",
        rig.named("Singers"),
        "[2]",
    )
    assert dead_letter["failed_in"] == "spanner_reader"
    assert dead_letter["payload_bytes"] > LARGE
    assert {row["Id"] for row in rig.rows("Singers")} <= {1}, "its neighbours in the transaction go on"

    # Read once more from the beginning, by a reader that knows nothing of the first: the same one, failed once more.
    reader.process.kill()
    rig.wait_until_ready(rig.start_reader("spanner_reader_again", PARTITION_TABLE="other_partitions"))
    (same,) = person.sees(1, attempts=2)
    assert {name for name in dead_letter if dead_letter[name] != same[name]} == {"attempts", "last_failed_at"}

    # It cannot be replayed or edited, and the words say what can be done.
    refused = person.output("replay", "--all", "--execute", code=1)
    assert "write the row once more at its source" in " ".join(refused.split())
    refused = person.output("edit", dead_letter["id"], "--set", 'Name="2"', "--why", "smaller", code=1)
    assert "write the row once more at its source" in " ".join(refused.split())
    rig.commit(Write("update", "Singers", {"Id": 2, "Photo": b"small"}))
    rig.wait_until_equal()
    person.output("discard", "--id", dead_letter["id"], "--why", "smaller at its source")
    person.output("list", code=3)
