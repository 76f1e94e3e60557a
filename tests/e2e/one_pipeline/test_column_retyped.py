"""A column dropped and added again with another type: who says so, what flows on, and the fixes to the dead letter."""

import re
from collections.abc import Mapping
from datetime import date, timedelta

import msgspec
import pytest

from deploy.local.platform.services import Service
from deploy.local.platform.source import Row, Write
from tests.e2e.rig import Rig
from tests.worlds.commands import run_command

pytestmark = pytest.mark.timeout(1_800)

TIMEOUT = timedelta(minutes=5)


class Answered:
    """What a command of a service has said."""

    def __init__(self, rig: Rig, service: str, *words: str, settings: Mapping[str, str]) -> None:
        done = run_command(f"services.{service}", words, {**rig.processes.environment, **settings})
        self.code, self.text = done.returncode, done.stdout


def ask_reader(rig: Rig, *words: str) -> Answered:
    return Answered(rig, "spanner_reader", *words, settings=rig.pipeline.reader_environment())


def ask_consumer(rig: Rig, consumer: Service, *words: str) -> Answered:
    return Answered(rig, "cdc_consumer", "status", "--address", consumer.address, *words, settings={})


def states(rig: Rig, consumer: Service) -> Mapping[str, str]:
    tables = msgspec.json.decode(ask_consumer(rig, consumer, "--json").text)["tables"]
    return {table["table"]: table["state"] for table in tables}


def singer(key: int, **row: object) -> Write:
    values: Row = {"Id": key, "Name": f"singer {key}", **row}  # type: ignore[dict-item]
    return Write("insert_or_update", "Singers", values)


def tag(name: str) -> Write:
    return Write("insert_or_update", "Tags", {"Tag": name})


def test_a_retyped_column_is_followed_and_the_fixes_that_both_services_print_restore_the_mirror(rig: Rig) -> None:
    consumer, reader = rig.consumer(), rig.start_reader(CHECK_SCHEMA_EVERY="1s")
    rig.wait_until_ready(reader, consumer, timeout=TIMEOUT)
    singers = rig.named("Singers")
    rig.commit(*[singer(key, Born=date(1990, 1, key)) for key in (1, 2, 3)], tag("before"))
    rig.wait_until_equal(timeout=TIMEOUT)

    rig.database.alter(f"ALTER TABLE {singers} DROP COLUMN Born", f"ALTER TABLE {singers} ADD COLUMN Born INT64")
    rig.commit(singer(2, Born=1992), singer(4, Born=1994), tag("after"))

    rig.wait_until_equal(["Tags", "Albums"], TIMEOUT)
    old, new = {1: date(1990, 1, 1), 2: None, 3: date(1990, 1, 3), 4: None}, {1: None, 2: 1992, 3: None, 4: 1994}
    rig.wait(
        lambda: (
            {row["Id"]: (row.get("Born"), row.get("Born_INT64")) for row in rig.rows("Singers")}
            == {key: (old[key], new[key]) for key in old}
        ),
        "the changes of the new type beside the old values",
        TIMEOUT,
    )
    assert rig.dead_letters() == []
    assert set(states(rig, consumer).values()) == {"running"}

    rig.wait(lambda: ask_reader(rig, "status").code == 1, "the reader to say so", TIMEOUT)
    status = ask_reader(rig, "status").text
    assert f"{singers}: pending resync since" in status
    assert "column type changed (Born)" in status

    # The consumer's fix: queries read the new column, which a snapshot fills.
    assert "query Born_INT64, and take a snapshot of " in consumer.process.output()

    # The reader's: every row comes again, and the resync request ends.
    touch = re.search(r"partitioned DML: (UPDATE .* WHERE TRUE) \(", status)
    synced = re.search(rf"`python -m services.spanner_reader (synced {singers})`", status)
    assert touch is not None, status
    assert synced is not None, status
    assert rig.database.execute(touch[1])[0] == 4
    rig.wait(
        lambda: (
            {row["Id"]: (row.get("Born"), row.get("Born_INT64")) for row in rig.rows("Singers")}
            == {key: (None, new[key]) for key in new}
        ),
        "the values of all rows in the new column",
        TIMEOUT,
    )
    assert ask_reader(rig, *synced[1].split()).code == 0

    rig.wait(lambda: set(states(rig, consumer).values()) == {"running"}, "all tables to run", TIMEOUT)
    assert (ask_reader(rig, "status").code, ask_consumer(rig, consumer).code) == (0, 0)
    assert rig.dead_letters() == []
