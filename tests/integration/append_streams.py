"""What tests of the append stream stand on: the stream before a server of their own, and rows to append."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import grpc
import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.bigquery.append_connection import AppendLimits, open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.bigquery.row_encoder import message_class, row_descriptor
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.stream.columns import decode_messages
from shared.contracts.change_batch import Header
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message, messages_table, table_definition
from tests.integration.append_server import AppendServer
from tests.unit.cdc_consumer.world import SetClock

PLANES = table_definition(a_header())
WIDER_HEADER = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
WIDER = table_definition(WIDER_HEADER)
SMALL = AppendLimits(request_bytes=1_000, window_bytes=3_000, largest_request_bytes=20_000, connections_of_table=1)


Opened = Callable[[AppendLimits], AppendStreams]


@pytest.fixture
def server() -> Iterator[AppendServer]:
    server = AppendServer()
    yield server
    server.stop()


@pytest.fixture
def stop() -> Stop:
    return Stop()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def channel(server: AppendServer) -> Iterator[grpc.Channel]:
    with open_storage_channel(server.address) as channel:
        yield channel


@pytest.fixture
def opened(channel: grpc.Channel, stop: Stop, clock: SetClock) -> Iterator[Opened]:
    """Return what opens streams of some limits, to be closed after the test."""
    before = set(threading.enumerate())
    with ExitStack() as stack:
        yield lambda limits: stack.enter_context(closing(AppendStreams(channel, "p", "d", stop, clock, limits)))
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("append")]
    assert left == [], "a connection's thread outlives it"


@pytest.fixture
def streams(opened: Opened) -> AppendStreams:
    return opened(SMALL)


def rows_of(*identities: int, header: Header | None = None, **values: object) -> pa.Table:
    header = header or a_header()
    changes = [a_change(identity, **values) for identity in identities]  # type: ignore[arg-type]
    (table,) = decode_messages(messages_table(a_message(*changes, header=header)), Nanoseconds(0)).tables
    return table.rows


def identities(rows: Sequence[bytes], definition: TableDefinition = PLANES) -> list[int]:
    parse: Any = message_class(row_descriptor(definition))
    return [parse.FromString(row).id for row in rows]


def ids_of(request: Any) -> list[int]:
    return identities(request.proto_rows.rows.serialized_rows)
