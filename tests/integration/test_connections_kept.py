"""Connections are kept from one micro-batch to the next: as many as there are tables, however many micro-batches.

BigQuery, "Storage Write API best practices", section "Limit the rate of stream creation": one connection for as many
writes as possible. What is counted here is what the stand-in has seen.
"""

import pytest

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.app.stream.micro_batch import Memory, Ports, apply
from shared.bigquery.client import open_client
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header, a_message, messages_table
from tests.fakes.dead_letters import FakeDeadLetters
from tests.fakes.leases import FakeLeases
from tests.integration.stand_in import PROJECT, StandIn

pytestmark = pytest.mark.integration

MICRO_BATCHES = 100
TABLES = tuple(f"table{number}" for number in range(5))


def test_a_hundred_micro_batches_of_five_tables_open_five_connections(bigquery_stand_in: tuple[str, str]) -> None:
    stand_in = StandIn(bigquery_stand_in)

    def opened() -> int:
        return int(stand_in.control("GET", "stats")["connections_opened"])

    before, stop, clock, memory = opened(), Stop(), SystemClock(), Memory()
    with open_storage_channel(bigquery_stand_in[1]) as channel:
        writer = AppendStreams(channel, PROJECT, stand_in.dataset, stop, clock)
        tables = BigQueryTables(open_client(PROJECT, bigquery_stand_in[0]), PROJECT, stand_in.dataset)
        ports = Ports(leases=FakeLeases(), dead_letters=FakeDeadLetters(), tables=tables, writer=writer)
        for number in range(1, MICRO_BATCHES + 1):
            messages = [a_message(a_change(number, number), header=a_header(table)) for table in TABLES]
            counts = apply(messages_table(*messages), ports, memory, stop, clock)
            assert (counts.acked, counts.deferred) == (len(TABLES), 0)
        writer.close()

    assert opened() - before == len(TABLES)
    assert [stand_in.run(f"SELECT COUNT(*) FROM {table}") for table in TABLES] == [[(MICRO_BATCHES,)]] * len(TABLES)
