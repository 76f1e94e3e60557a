"""A Spanner table with a column of every type, and the dataset that its changes are applied to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from deploy.local.platform.source import Row
from deploy.local.platform.target import BigQueryDataset
from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import conform, decode_messages, in_table
from services.cdc_consumer.core.stream.poison import Poison
from shared.bigquery.client import open_client
from shared.contracts.tables_file import read_tables_file
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.integration.stand_in import PROJECT, StandIn
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, messages_of


@dataclass
class Target:
    """A dataset of the stand-in, and the part of the consumer that writes it."""

    stand_in: StandIn
    dataset: BigQueryDataset
    tables: BigQueryTables
    writer: AppendStreams

    def apply(self, *data: bytes, tables_file: str = "") -> Sequence[Poison]:
        """Apply the changes of messages; return the poison among them."""
        plan = Plan(read_tables_file(tables_file), self.stand_in.dataset)
        decoded = decode_messages(messages_of(*data), AN_HOUR_LATER, plan)
        for table in decoded.tables:
            definition = self.tables.ensure(table.definition)
            rows = in_table(table, definition)[1]
            if len(rows):
                assert self.writer.append(definition, conform(rows, definition)).refused() == []
        return decoded.poison


@contextmanager
def open_target(bigquery_stand_in: tuple[str, str]) -> Iterator[Target]:
    """Give a dataset of its own on the stand-in."""
    rest, grpc = bigquery_stand_in
    stand_in = StandIn(bigquery_stand_in)
    dataset = BigQueryDataset(rest, PROJECT, stand_in.dataset)
    with open_storage_channel(grpc) as channel:
        writer = AppendStreams(channel, PROJECT, stand_in.dataset, Stop(), SystemClock())
        yield Target(stand_in, dataset, BigQueryTables(open_client(PROJECT, rest), PROJECT, stand_in.dataset), writer)
        writer.close()
    dataset.close()


def array_columns(lengths: Mapping[str, str]) -> str:
    return ", ".join(f"a_{name.lower()} ARRAY<{name}{length}>" for name, length in lengths.items())


SCALARS = {
    "BOOL": "", "INT64": "", "FLOAT64": "", "FLOAT32": "", "NUMERIC": "", "STRING": "(MAX)", "BYTES": "(MAX)",
    "DATE": "", "TIMESTAMP": "", "JSON": "",
}  # fmt: skip
SCHEMA = (
    f"""CREATE TABLE Arrays (Id INT64 NOT NULL, {array_columns(SCALARS)}, Ratio FLOAT32,
        Place ARRAY<FLOAT32>(vector_length=>2)) PRIMARY KEY (Id)""",
    "CREATE TABLE ByBytes (Id BYTES(16) NOT NULL, Name STRING(9)) PRIMARY KEY (Id)",
    """CREATE TABLE ByNumbers (F FLOAT64 NOT NULL, G FLOAT32 NOT NULL, D DATE NOT NULL, V BYTES(9))
       PRIMARY KEY (F, G, D)""",
    "CREATE TABLE ByNull (A INT64, B STRING(9), V STRING(9)) PRIMARY KEY (A, B)",
    """CREATE CHANGE STREAM Everything FOR Arrays, ByBytes, ByNumbers, ByNull
       OPTIONS (value_capture_type = 'NEW_ROW')""",
)
EVERYTHING: Row = {
    "Id": 1,
    "a_bool": (True, False),
    "a_int64": (2**63 - 1, -(2**63), 0),
    "a_float64": (0.1, -0.0, 5e-324, 1.7976931348623157e308),
    "a_float32": (1.1, -3.4028234663852886e38),
    "a_numeric": (Decimal("99999999999999999999999999999.999999999"), Decimal("-1.5")),
    "a_string": ("", "é\N{GUITAR}\"'\\\n", "NaN", "NULL"),
    "a_bytes": (b"", b"\x00\xff", b"abc"),
    "a_date": (date(1, 1, 1), date(9999, 12, 31)),
    # In a change stream the emulator drops fractions of seconds, and writes years before 1000 without their zeros.
    "a_timestamp": (datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    "a_json": ({"a": [1, 2.5, None]}, [], {"b": "\N{SNOWMAN}"}),
    "Ratio": 1.1,
    "Place": (0.1, -2.5),
}
POSTGRESQL = (
    """CREATE TABLE kinds (id bigint NOT NULL PRIMARY KEY, b boolean, f double precision, g real, n numeric,
       s varchar(20), t text, y bytea, d date, ts timestamptz, j jsonb, ab boolean[], ai bigint[],
       af double precision[], ag real[], an numeric[], a_s varchar[], ay bytea[], ad date[], ats timestamptz[],
       aj jsonb[], next bigint GENERATED ALWAYS AS (id + 1) STORED)""",
    'CREATE TABLE "ByParts" ("Id" bytea NOT NULL, "F" double precision NOT NULL, v varchar, PRIMARY KEY ("F", "Id"))',
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.orders (id bigint NOT NULL PRIMARY KEY, v varchar)",
    "CREATE TABLE stamps (id bigint NOT NULL PRIMARY KEY, at SPANNER.COMMIT_TIMESTAMP, o varchar(9), p real)",
    """CREATE CHANGE STREAM "Everything" FOR ALL WITH (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')""",
    """CREATE CHANGE STREAM parts FOR kinds, "ByParts", shop.orders, stamps(p)
       WITH (value_capture_type = 'NEW_ROW')""",
)
KINDS: Row = {
    "id": 2**63 - 2,
    "b": True,
    "f": -1.5e-300,
    "g": 1.1,
    "n": "-" + "9" * 200 + ".50",
    "s": "é\N{GUITAR}\"'\\\n",
    "t": "",
    "y": b"\x00\xff",
    "d": date(1, 1, 1),
    "ts": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    "j": {"a": [1, 2.5, None, {"b": "\N{SNOWMAN}"}]},
    "ab": (True, False),
    "ai": (-(2**63), 0),
    "af": (0.1, 1e300),
    "ag": (1.1, 0.5),
    "an": ("NaN", "1.50", "0"),
    "a_s": ("", "NaN", "a"),
    "ay": (b"", b"abc"),
    "ad": (date(9999, 12, 31),),
    "ats": (datetime(1970, 1, 1, tzinfo=UTC),),
    "aj": ({"a": 1}, [1]),
}


def protos() -> bytes:
    """Return the descriptors of a message app.User and of an enumeration app.State."""
    file = FileDescriptorProto(name="app.proto", package="app", syntax="proto3")
    file.message_type.add(name="User").field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    state = file.enum_type.add(name="State")
    state.value.add(name="UNKNOWN", number=0)
    state.value.add(name="ON", number=1)
    return FileDescriptorSet(file=[file]).SerializeToString()


PROTO_TYPED = (
    "CREATE PROTO BUNDLE (app.User, app.State)",
    """CREATE TABLE Typed (Id INT64 NOT NULL, U app.User, S app.State, Us ARRAY<app.User>, N STRING(9))
       PRIMARY KEY (Id)""",
    "CREATE CHANGE STREAM Everything FOR Typed OPTIONS (value_capture_type = 'NEW_ROW')",
)
"""A table with a column of each type that the schema defines itself."""
