"""What `status` makes of what the consumer says of its tables."""

import io
import json
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from services.cdc_consumer.commands.command_line import ConsumerStatusCommand
from services.cdc_consumer.commands.status import exit_code, lines, status
from services.cdc_consumer.core.stream.counts import Counts, TableNote
from services.cdc_consumer.ports import Mirror
from services.cdc_consumer.wiring.doctor import running_consumer
from shared.contracts.errors import MisconfiguredError
from shared.runtime.findings import Level
from shared.runtime.health import Health, serving_health
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.status_world import LATEST, MICROS, WAITS, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("ready", "alive", "state"),
    [(True, True, "running"), (False, True, "starting"), (True, False, "makes no progress")],
)
def test_the_exit_code_says_whether_everything_runs(world: World, ready: bool, alive: bool, state: str) -> None:
    world.take(Counts(tables={"planes": TableNote()}))
    document = world.document(ready=ready, alive=alive)

    assert document["state"] == state
    assert exit_code(document) == (state != "running")


@pytest.mark.parametrize("note", [WAITS, TableNote(unfit="bad_name: x")])
def test_a_table_that_does_not_run_is_an_exit_code(world: World, note: TableNote) -> None:
    world.take(Counts(tables={"planes": note, "airports": TableNote()}))
    assert exit_code(world.document()) == 1


def test_the_table_on_screen_has_a_line_for_each_trouble(world: World) -> None:
    world.mirrors = [Mirror("planes", MICROS, "table_made_anew")]
    world.take(Counts(dead_letters={"bad_name": 4}, tables={"planes": WAITS, "airports": TableNote(latest=LATEST)}))
    printed = list(lines(world.document()))

    assert printed[0] == "cdc_consumer: running since 2026-11-21T12:00:05Z"
    assert printed[1].split("  ")[0] == "TABLE"
    airports, planes, more = printed[2:5]
    assert airports.split() == ["airports", "running", "-", "2026-11-21T12:00:02Z", "0.5s", "1.5s"]
    assert planes.split() == ["planes", "deferred", "2026-11-21T12:00:05Z", "-", "-", "-", "PERMISSION_DENIED"]
    assert more.split() == ["needs", "re-sync", "2026-11-21T12:00:05Z", "table_made_anew"]
    assert "dead letters since the start: bad_name 4" in printed


def test_it_asks_the_running_service(world: World) -> None:
    world.take(Counts(tables={"planes": WAITS}))

    def ask() -> Mapping[str, object]:
        return world.status.document(ready=True, alive=True)

    with serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0, ask) as port:
        out = io.StringIO()
        assert status(ConsumerStatusCommand(json=True, address=f"127.0.0.1:{port}"), {}, out) == 1
        assert json.loads(out.getvalue()) == world.document()
        out = io.StringIO()
        assert status(ConsumerStatusCommand(), {"HOST": "0.0.0.0", "PORT": str(port)}, out) == 1  # noqa: S104  what it listens on
        assert "planes" in out.getvalue()


def test_doctor_names_what_the_running_consumer_has_trouble_with(world: World) -> None:
    world.take(Counts(tables={"planes": WAITS, "airports": TableNote(latest=LATEST)}))

    def ask() -> Mapping[str, object]:
        return world.status.document(ready=True, alive=True)

    with serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0, ask) as port:
        (found,) = running_consumer(f"127.0.0.1:{port}")
    assert (found.level, found.check) == (Level.WARNING, "running consumer, table planes")
    assert found.detail == "deferred: PERMISSION_DENIED"
    assert list(running_consumer(f"127.0.0.1:{port}")) == [], "none runs there"


def test_nobody_there_is_told_with_what_to_do(world: World) -> None:
    with serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0) as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(MisconfiguredError, match=f"no consumer can be asked at {address} .HTTP Error 404"):
            status(ConsumerStatusCommand(address=address), {}, io.StringIO())
    with pytest.raises(MisconfiguredError, match=r"is it running\? --address HOST:PORT"):
        status(ConsumerStatusCommand(address=address), {}, io.StringIO())
    with (
        serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0, lambda: {"service": "other"}) as port,
        pytest.raises(MisconfiguredError, match="no cdc_consumer"),
    ):
        status(ConsumerStatusCommand(address=f"127.0.0.1:{port}"), {}, io.StringIO())
