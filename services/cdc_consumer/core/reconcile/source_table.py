"""The change batches of a source's rows as the columns of its mirror, by the very code that messages go through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from services.cdc_consumer.core.schema.destinations import EVERYTHING, Plan, destinations
from services.cdc_consumer.core.schema.tables import TableColumn, TableDefinition
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.core.stream.messages import MESSAGE_SCHEMA
from shared.contracts.change_batch import Header, decode_batch
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import SEQUENCE_COLUMN
from shared.contracts.row_id import key_text
from shared.contracts.source_rows import Key, keys_of
from shared.contracts.timestamps import Nanoseconds

_ALWAYS: Final = Nanoseconds(0)
"""No row that is only compared is too old."""

_encode: Final = msgspec.json.Encoder().encode
_object: Final = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class Unfit:
    """A row that BigQuery cannot hold, and why."""

    key: Key
    why: str


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A source table, and the mirror that it has to have."""

    header: Header
    definition: TableDefinition
    columns: tuple[TableColumn, ...]
    """Those of the source that are compared, the key's among them."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that rows have here: the compared ones in their wire types, and the sequence."""
        columns = [(column.name, column.type.wire) for column in self.columns]
        return pa.schema([*columns, (SEQUENCE_COLUMN, pa.string())])

    def row_id(self, key: Key) -> str:
        """Return the one text of a key, however it is written."""
        named = dict(zip(self.header.primary_key, key, strict=True))
        return key_text(self.header.table, self.header.key_types(), _encode(named))


def unfit(error: PoisonRecordError) -> MisconfiguredError:
    """Return the error for a source table that cannot be mirrored."""
    return MisconfiguredError("source-table-unfit", f"the source's table cannot be mirrored: {error.detail}")


def mirrored(batch: bytes, plan: Plan = EVERYTHING) -> Mirrored:
    """Return what is to be compared of the table that a batch is of; MisconfiguredError where nothing can be."""
    try:
        header = decode_batch(batch).header
        found = destinations(header, plan)
    except PoisonRecordError as error:
        raise unfit(error) from error
    if found is None or found.mirror is None:
        why = "a change log, which is no mirror" if header.content == "entries" else "left out by the tables file"
        if found is not None and header.content != "entries":
            why = "kept as a history only, which is no mirror"
        raise MisconfiguredError("table-not-comparable", f"table {header.table} cannot be compared: it is {why}")
    return Mirrored(header, found.mirror, found.kept)


def source_rows(table: Mirrored, batches: Sequence[bytes], plan: Plan = EVERYTHING) -> tuple[pa.Table, Sequence[Unfit]]:
    """Return the rows of some batches of a table, and those that no mirror can hold.

    MisconfiguredError where they are not of that table, or not as it was: it was altered meanwhile.
    """
    messages = pa.Table.from_pydict(
        {name: batches if name == "data" else [None] * len(batches) for name in MESSAGE_SCHEMA.names}, MESSAGE_SCHEMA
    )
    decoded = decode_messages(messages, _ALWAYS, plan)
    for waits in decoded.waiting.values():
        raise waits.why
    altered = f"table {table.header.table} was altered while it was read: ask again"
    if any(batch.header.table != table.header.table for batch in decoded.batches.values()):
        raise MisconfiguredError("table-altered-meanwhile", altered)
    found = [each for each in decoded.tables if not each.definition.append_only]
    if any(each.definition != table.definition for each in found):
        raise MisconfiguredError("table-altered-meanwhile", altered)
    unfit = []
    for poison in decoded.poison:
        if poison.change is None:
            raise MisconfiguredError("source-rows-undecodable", f"the source's rows cannot be read: {poison.detail}")
        named = _object.decode(decoded.batches[poison.message].keys[poison.change])
        (key,) = keys_of([[named.get(name) for name in table.header.primary_key]])
        unfit.append(Unfit(key, f"{poison.reason.value}: {poison.detail}"))
    names = table.schema.names
    rows = pa.concat_tables([each.rows.select(names) for each in found] or [table.schema.empty_table()])
    return rows, unfit
