"""A column dropped and added again with another type: who says so, what flows on, and the cures to the letter."""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import msgspec
import pytest

from deploy.local.platform.services import Service
from deploy.local.platform.source import Row, Write
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.reasons import Reason
from tests.e2e.rig import Message, Rig
from tests.e2e.standing import REFUSED_AFTER
from tests.worlds.commands import run_command

pytestmark = pytest.mark.timeout(1_800)

TIMEOUT = timedelta(minutes=5)
SECOND = 1_000_000_000  # in nanoseconds
INSPECTED_AGAIN = timedelta(seconds=10)
"""How long a worker process of the consumer dead-letters what conflicts, before it inspects the table again."""
ANNOUNCEMENT = ""  # the header of a new column list alone: a letter that holds no change, and so no key


class Said:
    """What a command of a service has said."""

    def __init__(self, rig: Rig, service: str, *words: str, settings: Mapping[str, str]) -> None:
        done = run_command(f"services.{service}", words, {**rig.processes.environment, **settings})
        self.code, self.text = done.returncode, done.stdout


def reader_says(rig: Rig, *words: str) -> Said:
    return Said(rig, "spanner_reader", *words, settings=rig.pipeline.reader_environment())


def consumer_says(rig: Rig, consumer: Service, *words: str) -> Said:
    return Said(rig, "cdc_consumer", "status", "--address", consumer.address, *words, settings={})


def states(rig: Rig, consumer: Service) -> Mapping[str, str]:
    tables = msgspec.json.decode(consumer_says(rig, consumer, "--json").text)["tables"]
    return {table["table"]: table["state"] for table in tables}


def singer(key: int, **row: object) -> Write:
    values: Row = {"Id": key, "Name": f"singer {key}", **row}  # type: ignore[dict-item]
    return Write("insert_or_update", "Singers", values)


def tag(name: str) -> Write:
    return Write("insert_or_update", "Tags", {"Tag": name})


def letters(rig: Rig, of: set[str]) -> Sequence[DeadLetter]:
    """Return the letters of these keys; one of the announcement is among them if the reader looked before it read."""
    found: list[DeadLetter] = []

    def kept() -> bool:
        found.extend(rig.letters())
        return {letter.key for letter in found} >= of

    rig.wait(kept, f"the letters of {sorted(of)}", TIMEOUT)
    assert {letter.key for letter in found} <= {*of, ANNOUNCEMENT}
    return found


def test_both_services_report_a_retyped_column_and_the_fixes_they_print_restore_the_mirror(rig: Rig) -> None:
    consumer, reader = rig.consumer(), rig.start_reader(CHECK_SCHEMA_EVERY="1s")
    rig.wait_until_ready(reader, consumer, timeout=TIMEOUT)
    singers = rig.named("Singers")
    rig.commit(*[singer(key, Born=date(1990, 1, key)) for key in (1, 2, 3)], tag("before"))
    rig.wait_until_equal(timeout=TIMEOUT)

    rig.database.alter(f"ALTER TABLE {singers} DROP COLUMN Born", f"ALTER TABLE {singers} ADD COLUMN Born INT64")
    rig.commit(singer(2, Born=1992), singer(4, Born=1994), tag("after"))

    unfit = letters(rig, of={"[2]", "[4]"})
    assert {letter.reason for letter in unfit} == {Reason.SCHEMA_CONFLICT}
    rig.wait_until_equal(["Tags", "Albums"], TIMEOUT)
    kept = {row["Id"]: row["Born"] for row in rig.rows("Singers")}
    assert kept == {key: date(1990, 1, key) for key in (1, 2, 3)}

    rig.wait(lambda: reader_says(rig, "status").code == 1, "the reader to say so", TIMEOUT)
    told = reader_says(rig, "status").text
    assert f"{singers}: needs re-sync since" in told
    assert "column type changed (Born)" in told
    # Any publisher may forge one such batch: `status` shows a healthy table as refused when another comes later.
    repeated_at = max(letter.failed_at for letter in unfit) + 2 * REFUSED_AFTER.seconds * SECOND
    rig.wait(lambda: time.time_ns() > repeated_at, "more than REFUSED_AFTER to pass", TIMEOUT)
    rig.commit(singer(2, Born=1992), singer(4, Born=1994))
    letters(rig, of={"[2]", "[4]"})
    rig.wait(lambda: states(rig, consumer).get(singers) == "refused", "the consumer to say so", TIMEOUT)
    shown = consumer_says(rig, consumer)
    assert (shown.code, states(rig, consumer)[rig.named("Tags")]) == (1, "running")

    # The consumer's cure: the column goes, and the letters are replayed.
    drop = re.search(r"\((ALTER TABLE \S+ DROP COLUMN `Born`)\)", shown.text)
    assert drop is not None, shown.text
    assert drop[1] in unfit[0].detail
    assert "; then replay" in unfit[0].detail
    rig.target.query(drop[1])
    inspected_at = time.time_ns() + INSPECTED_AGAIN.seconds * SECOND
    rig.wait(lambda: time.time_ns() > inspected_at, "every worker to inspect the table again")
    rig.published()
    rig.publish([Message(one.data, {**one.attributes, REPLAY_OF: one.identity}, one.ordering_key) for one in unfit])
    rig.wait(
        lambda: {row["Id"]: row.get("Born") for row in rig.rows("Singers")} == {1: None, 2: 1992, 3: None, 4: 1994},
        "the replayed changes to be applied",
        TIMEOUT,
    )

    # The reader's: every row comes again, and the mark is taken away.
    touch = re.search(r"partitioned DML: (UPDATE .* WHERE TRUE) \(", told)
    synced = re.search(rf"`python -m services.spanner_reader (synced {singers})`", told)
    assert touch is not None, told
    assert synced is not None, told
    assert rig.database.execute(touch[1])[0] == 4
    rig.wait_until_equal(timeout=TIMEOUT)
    assert reader_says(rig, *synced[1].split()).code == 0

    rig.wait(lambda: set(states(rig, consumer).values()) == {"running"}, "all tables to run", TIMEOUT)
    assert (reader_says(rig, "status").code, consumer_says(rig, consumer).code) == (0, 0)
    assert {letter.key for letter in rig.letters()} <= {ANNOUNCEMENT}
