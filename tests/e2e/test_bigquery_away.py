"""BigQuery away for long: Pub/Sub keeps the backlog, leases are kept, nothing is lost and nothing becomes a letter.

And the consumer says what is the matter, and is not taken to be dead for it.
"""

import io
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from deploy.local import emulators
from deploy.local.emulators import HOST
from deploy.local.processes import Processes
from deploy.local.services import Service, start_consumer, start_reader, wait_until_ready
from deploy.local.source import SpannerInstance, Write
from services.cdc_consumer.status_command import status
from tests.e2e.rig import ACK_DEADLINE, TABLES, NewRig, Rig
from tests.integration.wire import wire

pytestmark = pytest.mark.timeout(300)  # an outage takes its time, and so does a busy machine

LIVENESS = timedelta(seconds=30)
"""Shorter than the outages here."""


def singer(key: int, name: str) -> Write:
    return Write("insert_or_update", "Singers", {"Id": key, "Name": name})


class Deliveries:
    """How often messages were published and delivered since the pipeline was warm.

    Before that, a machine that takes long to start Spark's workers lets leases of ten seconds pass.
    """

    def __init__(self, rig: Rig, consumer: Service) -> None:
        self._rig, self._consumer = rig, consumer
        self._published = self._taken = 0
        self._published, self._taken = self.settled()

    def settled(self) -> tuple[int, int]:
        """Wait until all that is published is acked; return how many were published and taken since we began."""
        published = self._published + len(self._rig.published())
        counted = self._rig.counted
        self._rig.wait(
            lambda: counted(self._consumer, "millrace_leases_acked_total") >= self._taken + published - self._published,
            "everything to be acked",
        )
        return published, int(counted(self._consumer, "millrace_leases_taken_total"))

    def check(self) -> None:
        """Fail where a message was delivered more than once, or one became a letter."""
        published, taken = self.settled()
        assert taken - self._taken == published - self._published > 0, "each message was delivered once"
        assert self._rig.letters() == []


def warm(rig: Rig, **settings: str) -> Service:
    """Start both services and let them apply something; return the consumer."""
    consumer = start_consumer(rig.processes, rig.pipeline, **settings)
    reader = start_reader(rig.processes, rig.pipeline, start=rig.start)
    wait_until_ready(rig.processes, consumer, reader)
    rig.commit(*[singer(key, "before") for key in range(10)])
    rig.wait_until_equal()
    return consumer


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
    code = status(["--json", "--address", f"{HOST}:{consumer.port}"], {}, out)
    tables: Sequence[Mapping[str, Any]] = json.loads(out.getvalue())["tables"]
    return code, next(one for one in tables if one["table"] == table)


def test_appends_refused_for_five_ack_deadlines_mean_no_redelivery_and_no_letter(rig: Rig) -> None:
    consumer = warm(rig, LIVENESS=f"{LIVENESS.seconds}s")
    deliveries = Deliveries(rig, consumer)
    rig.wait(lambda: state_of(consumer, "Singers")[1]["state"] == "running", "the table to be said to run")

    with rig.fault(action="close", status="UNAVAILABLE"):
        refused = rig.stats()["refused"]
        rig.commit(*[singer(key, "while away") for key in range(10)])
        rig.wait(lambda: rig.stats()["refused"] > refused, "the first refusal")
        ends = time.monotonic() + 5 * ACK_DEADLINE.total_seconds()  # longer than the consumer may be without a sign
        while time.monotonic() < ends:
            assert (answer(consumer, "/healthz"), answer(consumer, "/readyz")) == (200, 200)
            time.sleep(1)
        rig.processes.check()
        code, told = state_of(consumer, "Singers")
        assert (code, told["state"]) == (1, "put off")
        assert "UNAVAILABLE" in told["troubles"][0]["why"]
        rig.commit(*[singer(key, "later while away") for key in range(5)])
    rig.wait_until_equal()
    rig.wait(lambda: state_of(consumer, "Singers")[1]["state"] == "running", "the table to be said to run again")

    deliveries.check()


@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
def test_all_of_bigquery_away_while_a_table_is_new_means_no_redelivery_and_no_letter(
    new_rig: NewRig, spanner_instance: SpannerInstance, processes: Processes, silent: bool
) -> None:
    with (
        emulators.bigquery_stand_in(processes) as (rest, write_api),
        wire(rest) as rest_wire,
        wire(write_api) as write_wire,
    ):
        stand_in = next(one for one in processes.running if one.name == "bigquery_stand_in")
        rig = new_rig(spanner_instance, (rest_wire.address, write_wire.address))
        consumer = warm(rig)
        deliveries = Deliveries(rig, consumer)
        written = rig.counted(consumer, "millrace_consumer_rows_written_total")

        if silent:
            stand_in.signal(signal.SIGSTOP)  # connections stay open and new ones are taken: no answer, no error
        else:
            rest_wire.cut()
            write_wire.cut()
        rig.database.alter("CREATE TABLE Venues (Id INT64 NOT NULL, Name STRING(MAX)) PRIMARY KEY (Id)")
        rig.commit(*[singer(key, "while away") for key in range(5)])
        rig.commit(*[Write("insert", "Venues", {"Id": key, "Name": "new"}) for key in range(10)])
        time.sleep(3 * ACK_DEADLINE.total_seconds())
        processes.check()
        assert rig.counted(consumer, "millrace_consumer_rows_written_total") == written, "it was away"
        rig.commit(Write("delete", "Singers", {"Id": 9}), Write("delete", "Venues", {"Id": 9}))
        if silent:
            stand_in.signal(signal.SIGCONT)
        else:
            rest_wire.mend()
            write_wire.mend()
        rig.wait_until_equal([*TABLES, "Venues"])

        deliveries.check()
        processes.end_all()  # before what they stand on
        rig.drop()
