"""BigQuery away for long: Pub/Sub keeps the backlog, leases are kept, nothing is lost or becomes a dead letter.

And the consumer says what is the matter, and is not taken to be dead for it.
"""

import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from deploy.local.platform.emulators import HOST
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Service
from deploy.local.platform.source import Write
from services.cdc_consumer.commands.command_line import ConsumerStatusCommand
from services.cdc_consumer.commands.status import status
from tests.e2e.rig import TABLES, Rig
from tests.e2e.standing import ACK_DEADLINE, LIVENESS
from tests.integration.wire import Wire
from tests.worlds.churn import standing_still

pytestmark = pytest.mark.timeout(300)  # an outage takes its time, and so does a busy machine


LEASES_ENDED = 2 * ACK_DEADLINE
"""How long BigQuery is away: every lease has run out by then, unless it was extended again and again."""


def singer(key: int, name: str) -> Write:
    return Write("insert_or_update", "Singers", {"Id": key, "Name": name})


class Deliveries:
    """How often messages were published and delivered since the pipeline was warm.

    Before that, a machine that takes long to start Spark's workers lets leases of ten seconds pass.
    """

    def __init__(self, rig: Rig, consumer: Service, acked: float) -> None:
        """``acked``: how many messages the consumer had acked before the first of the rig's was published."""
        self._rig, self._consumer, self._acked = rig, consumer, acked
        self._published = 0
        self._taken = self._settled()
        self._before = self._published

    def _settled(self) -> float:
        """Wait until all that is published is acked; return how many messages the consumer has taken by then."""
        while True:
            self._published += len(self._rig.published())
            self._rig.wait(lambda: self._counted("acked") - self._acked >= self._published, "everything to be acked")
            taken = self._counted("acquired")
            later = len(self._rig.published())
            self._published += later
            if not later:  # else one of them may be among the taken
                return taken

    def _counted(self, what: str) -> float:
        return self._rig.counted(self._consumer, f"millrace_leases_{what}_total")

    def check(self) -> None:
        """Fail where a message was delivered more than once, or one became a dead letter."""
        taken = self._settled()
        assert taken - self._taken == self._published - self._before > 0, "each was delivered once"
        assert self._rig.dead_letters() == []


def warm(rig: Rig) -> tuple[Service, Deliveries]:
    """Start both services and let them apply something; return the consumer, and its deliveries from then on."""
    consumer = rig.consumer()
    rig.wait_until_ready(consumer)
    acked = rig.counted(consumer, "millrace_leases_acked_total")  # before the reader announces its tables
    # The ends of initial snapshots are messages too, and could be published while the deliveries are counted.
    reader = rig.start_reader(SNAPSHOT="never")
    rig.wait_until_ready(reader)
    rig.commit(*[singer(key, "before") for key in range(10)])
    rig.wait_until_equal()
    return consumer, Deliveries(rig, consumer, acked)


def answer(consumer: Service, path: str) -> int:
    """Return the status of an answer of the consumer's health port."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{consumer.port}{path}", timeout=20) as answered:
            return int(answered.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def state_of(consumer: Service, table: str) -> tuple[int, Mapping[str, Any]]:
    """Ask as an operator does; return the exit code and what is said of a table."""
    out = io.StringIO()
    code = status(ConsumerStatusCommand(json=True, address=f"{HOST}:{consumer.port}"), {}, out)
    tables: Sequence[Mapping[str, Any]] = json.loads(out.getvalue())["tables"]
    return code, next(one for one in tables if one["table"] == table)


def test_appends_refused_for_two_ack_deadlines_mean_no_redelivery_and_no_dead_letter(rig: Rig) -> None:
    consumer, deliveries = warm(rig)
    singers = rig.named("Singers")
    rig.wait(lambda: state_of(consumer, singers)[1]["state"] == "running", "the table to be said to run")

    with rig.fault(action="close", status="UNAVAILABLE"):
        refused = rig.stats()["refused"]
        rig.commit(*[singer(key, "while away") for key in range(10)])
        rig.wait(lambda: rig.stats()["refused"] > refused, "the first refusal")
        assert LEASES_ENDED > LIVENESS, "the outage is longer than the consumer may be without a sign of life"
        ends = time.monotonic() + LEASES_ENDED.total_seconds()
        while time.monotonic() < ends:  # a lease that is not extended ends by nothing but time
            assert (answer(consumer, "/healthz"), answer(consumer, "/readyz")) == (200, 200)
            time.sleep(1)
        rig.processes.check()
        code, state = state_of(consumer, singers)
        assert (code, state["state"]) == (1, "deferred")
        assert "UNAVAILABLE" in state["troubles"][0]["why"]
        rig.commit(*[singer(key, "later while away") for key in range(5)])
    rig.wait_until_equal()
    rig.wait(lambda: state_of(consumer, singers)[1]["state"] == "running", "the table to be said to run again")

    deliveries.check()


@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
def test_bigquery_unavailable_while_a_table_is_new_means_no_redelivery_and_no_dead_letter(
    rig: Rig, platform_processes: Processes, silent: bool
) -> None:
    consumer, deliveries = warm(rig)
    written = rig.counted(consumer, "millrace_consumer_written_rows_total")
    (stand_in,) = [one for one in platform_processes.running if one.name == "bigquery_stand_in"]

    # Stopped, its connections stay open and new ones are taken, but there is no answer and no error.
    with standing_still(stand_in) if silent else cut(rig.standing.wires):
        rig.database.alter(f"CREATE TABLE {rig.named('Venues')} (Id INT64 NOT NULL, Name STRING(MAX)) PRIMARY KEY (Id)")
        rig.commit(*[singer(key, "while away") for key in range(5)])
        rig.commit(*[Write("insert", "Venues", {"Id": key, "Name": "new"}) for key in range(10)])
        time.sleep(LEASES_ENDED.total_seconds())  # a lease that is not extended ends by nothing but time
        rig.processes.check()
        assert rig.counted(consumer, "millrace_consumer_written_rows_total") == written, "it was away"
        rig.commit(Write("delete", "Singers", {"Id": 9}), Write("delete", "Venues", {"Id": 9}))
    rig.wait_until_equal([*TABLES, "Venues"])

    deliveries.check()


@contextmanager
def cut(wires: Sequence[Wire]) -> Iterator[None]:
    """Close the connections through wires, and those to come."""
    for one in wires:
        one.cut()
    try:
        yield
    finally:
        for one in wires:
            one.fix()
