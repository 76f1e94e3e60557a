"""Poison of the real consumer is collected, listed, fixed, replayed and applied; twice, and nothing changes."""

import json
from collections.abc import Iterator

import pytest

from deploy.local.platform.processes import Processes
from tests.builders import a_header
from tests.conftest import PROJECT
from tests.e2e.mending import Mending, a_mending, change, publish
from tests.e2e.standing import Standing
from tests.integration.stand_in import StandIn

pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture
def mending(processes: Processes, standing: Standing) -> Iterator[Mending]:
    standing.letters()  # those of the test before
    with a_mending(processes, standing.flow, StandIn(standing.bigquery)) as mending:
        mending.start(standing.consumer())
        yield mending


def test_dead_letters_are_fixed_by_an_edit_and_by_the_schema_and_replayed_until_the_tables_are_equal(
    mending: Mending,
) -> None:
    world, planes, pilots = mending.world, a_header("planes"), a_header("pilots")
    table = f"{PROJECT}.{world.pipeline.dataset}.pilots"
    world.stand_in.run(
        f"CREATE TABLE `{table}` (id INT64, name STRING, seats INT64, _millrace_sequence STRING, "
        "_millrace_commit_timestamp TIMESTAMP, PRIMARY KEY (name) NOT ENFORCED)"
    )
    publish(world, planes, change(1, 1, name="a", seats="2"), change(2, 2, name="b", seats="many"))
    publish(world, pilots, *(change(key, key, name=f"p{key}", seats="1") for key in range(1, 6)))
    mending.wait_for("planes", {1: ("a", 2)})

    # One bad value: looked at, edited, replayed.
    (dead_letter,) = mending.dead_letters(1, "--table", "planes")
    assert (dead_letter["reason"], dead_letter["key"]) == ("value_does_not_fit", "[2]")
    assert "seats" in dead_letter["detail"]
    assert "many" not in json.dumps(mending.say("show", dead_letter["id"]))
    edit = mending.say("edit", dead_letter["id"], "--set", 'seats="12"', "--why", "a word for a number")
    assert mending.say("replay", "--id", edit["id"])["verdicts"]["send"] == 1
    assert mending.say("replay", "--id", edit["id"], "--execute")["sent"] == 1
    mending.wait_for("planes", {1: ("a", 2), 2: ("b", 12)})

    # One cause for many: the group is replayed once the table is right.
    mending.dead_letters(5, "--table", "pilots")
    (group,) = mending.say("groups", "--table", "pilots")["groups"]
    assert (group["reason"], group["letters"]) == ("schema_conflict", 5)
    world.stand_in.run(f"DROP TABLE `{table}`")
    assert mending.say("replay", "--group", group["id"], "--execute")["sent"] == 5
    right = {key: (f"p{key}", 1) for key in range(1, 6)}
    mending.wait_for("pilots", right)

    # Everything once more, and what is newer stays.
    publish(world, planes, change(2, 9, name="newest", seats="20"))
    mending.wait_for("planes", {1: ("a", 2), 2: ("newest", 20)})
    assert mending.say("restore", "--all", "--state", "replayed", "--state", "superseded")["changed"] == 7
    document = mending.say("replay", "--all", "--execute")
    assert (document["sent"], document["verdicts"]["superseded"]) == (5, 2)
    mending.environment["BIGQUERY_DATASET"] = ""  # now it is not known, and loses by its sequence
    mending.say("restore", "--id", edit["id"])
    assert mending.say("replay", "--id", edit["id"], "--execute")["sent"] == 1
    publish(world, planes, change(3, 1, name="last", seats="1"))
    mending.wait_for("planes", {1: ("a", 2), 2: ("newest", 20), 3: ("last", 1)})
    assert mending.rows("pilots") == right
    assert mending.asked("list").returncode == 3
    actions = [entry["action"] for entry in mending.say("show", edit["id"])["trail"]]
    assert actions == ["edited", "replayed", "restored", "superseded", "restored", "replayed"]
