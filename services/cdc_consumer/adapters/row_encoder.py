"""Typed columns to serialized protobuf rows, as BigQuery's Storage Write API takes them."""

import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto

from services.cdc_consumer.core.tables import TableDefinition


def row_descriptor(definition: TableDefinition) -> DescriptorProto:
    """Return the message type of a table's rows: proto2, optional fields, the two pseudo-columns last."""
    raise NotImplementedError


class RowEncoder:
    """Encodes rows of one table definition; make one per definition and keep it."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.descriptor = row_descriptor(definition)

    def encode(self, rows: pa.Table) -> pa.BinaryArray:
        """Return one serialized message per row. Book-keeping columns are left out; other columns must be exactly
        the definition's (see `conform`), else TypeError.
        """
        raise NotImplementedError
