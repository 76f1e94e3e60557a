"""A consumer on the BigQuery emulator that is given its messages by hand, and changes of planes at given seconds."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import grpc

from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.app.stream.micro_batch import Memory, Ports, apply
from services.cdc_consumer.core.schema.destinations import Plan
from shared.bigquery.client import open_client
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.builders import messages_table
from tests.fakes.crash_counts import FakeCrashCounts
from tests.fakes.dead_letters import FakeDeadLetters
from tests.fakes.leases import FakeLeases
from tests.integration.stand_in import PROJECT, StandIn

BOTH = '[defaults]\nmode = "both"'
EPOCH = parse_timestamp("2026-11-21T12:00:00Z")


class FedConsumer:
    """A consumer's worker process without Spark: everything but the source is real."""

    def __init__(self, stand_in: StandIn, rest: str, channel: grpc.Channel, tables: str = BOTH) -> None:
        self.dead_letters = FakeDeadLetters()
        self._memory = Memory(plan=Plan(read_tables_file(tables), stand_in.dataset))
        self._stop, self._clock = Stop(), SystemClock()
        self._ports = Ports(
            leases=FakeLeases(),
            dead_letters=self.dead_letters,
            tables=BigQueryTables(open_client(PROJECT, rest), PROJECT, stand_in.dataset),
            writer=AppendStreams(channel, PROJECT, stand_in.dataset, self._stop, self._clock),
            crash_counts=FakeCrashCounts(),
        )

    def apply(self, *messages: Mapping[str, object]) -> None:
        counts = apply(messages_table(*messages), self._ports, self._memory, self._stop, self._clock)
        assert counts.acked == len(messages)
        assert self.dead_letters.kept == {}


Fed = Callable[..., FedConsumer]


def a_plane(
    identity: int, second: int, index: int = 0, *, name: str | None = None, delete: bool = False, **row: object
) -> Change:
    """Return the ``index``-th change of the transaction that committed at a second."""
    commit = Nanoseconds(EPOCH + second * 1_000_000_000)
    return Change(
        op="DELETE" if delete else "UPSERT",
        mod_type="DELETE" if delete else "UPDATE",
        sequence=str(four_sections(commit // 1000, index)),
        commit_timestamp=format_timestamp(commit),
        place=json.dumps({"server_transaction_id": f"t{second}", "record_sequence": f"{index:08}", "mod_index": 0}),
        key=json.dumps({"id": str(identity)}),
        row=None if delete else json.dumps({"name": name, **row}),
    )


def at(second: int) -> datetime:
    return datetime.fromisoformat("2026-11-21T12:00:00+00:00") + timedelta(seconds=second)
