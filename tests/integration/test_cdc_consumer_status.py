"""`status` of a consumer that runs: what each table is said to be, and what a restart still knows."""

import sys
from collections.abc import Mapping
from datetime import timedelta

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import Service
from tests.builders import a_change, a_header, a_message
from tests.worlds.consumer import World, asked, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TIMEOUT = timedelta(seconds=180)


def states(consumer: Service) -> Mapping[str, str]:
    document = asked(consumer)
    return {} if document is None else {name: one["state"] for name, one in document["tables"].items()}


def read_at(consumer: Service) -> str | None:
    document = asked(consumer)
    return None if document is None else document["labels"]["read_at"]


def test_status_shows_the_state_of_every_table_and_a_restart_remembers_recreated_tables(world: World) -> None:
    def wait_for(consumer: Service, expected: Mapping[str, str]) -> None:
        world.processes.wait_until(lambda: states(consumer) == expected or None, f"status to be {expected}", TIMEOUT)

    first = world.start("first")
    world.publish(a_message(a_change(1)), a_message(a_change(1), header=a_header("pilots")))
    wait_for(first, {"planes": "running", "pilots": "running"})
    world.publish(a_message(a_change(1), header=a_header("keyless", key=())))
    wait_for(first, {"planes": "running", "pilots": "running", "keyless": "refused"})

    listed = read_at(first)
    world.processes.wait_until(lambda: read_at(first) != listed or None, "the tables to be listed again", TIMEOUT)
    world.stand_in.client.delete_table(f"{world.pipeline.project}.{world.pipeline.dataset}.planes")
    world.publish(a_message(a_change(2)))
    world.wait_for_rows({2: "name 1"})
    wait_for(first, {"planes": "pending resync", "pilots": "running", "keyless": "refused"})
    document = asked(first)
    assert document is not None
    assert document["tables"]["planes"]["troubles"][0]["why"] == "table_made_anew"
    assert document["changes"]["dead_letters"] == {"no_primary_key": 1}
    assert document["changes"]["written"] >= 3
    assert document["processes"]["seen"] >= 1
    lag = document["lag_seconds"]
    assert lag["commit_to_published"] is not None
    assert 0 <= lag["published_to_applied"] < TIMEOUT.total_seconds()

    command = [sys.executable, "-m", "services.cdc_consumer", "status"]
    settings = {"PYTHONPATH": str(ROOT), "PORT": str(first.port)}
    process = world.processes.start("status", command, settings)
    process.expected_to_end = True
    assert process.wait(TIMEOUT) == 1, process.obituary()
    assert "pending resync" in process.output()

    assert ends(first) == 0
    second = world.launch("second")
    wait_for(second, {"planes": "pending resync", "pilots": "running"})  # from the labels, before Spark has started
    second.process.kill()
