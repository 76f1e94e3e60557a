"""Rows with nested messages and repeated fields, written to a table of the stand-in."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2

from tests.integration.stand_in import StandIn, Writing
from tests.row_messages import CHANGE, change, row_message

_Field = descriptor_pb2.FieldDescriptorProto
REPEATED = "repeated "


def make(stand_in: StandIn, columns: str) -> None:
    """Make table `t` with a key and these columns."""
    stand_in.run(f"CREATE TABLE t (k INT64, {columns}, PRIMARY KEY (k) NOT ENFORCED)")


def message(fields: Mapping[str, Any]) -> descriptor_pb2.DescriptorProto:
    """Return a row's descriptor: a field's type is a name, or a mapping for a nested message; "repeated " before it."""
    row = row_message({"k": "int64", **CHANGE})
    _add(row, fields, "Row")
    return row


def _add(parent: descriptor_pb2.DescriptorProto, fields: Mapping[str, Any], path: str) -> None:
    for name, kind in fields.items():
        repeated = name.startswith(REPEATED)
        plain = name.removeprefix(REPEATED)
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        field = parent.field.add(name=plain, number=len(parent.field) + 1, label=label)
        if isinstance(kind, Mapping):
            nested = parent.nested_type.add(name=f"M_{plain}")
            _add(nested, kind, f"{path}.M_{plain}")
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{path}.M_{plain}"
        elif "." in kind:
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{kind}"
        else:
            field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")


def append(stand_in: StandIn, fields: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Any:
    """Append rows to it, and return the answer."""
    with Writing(stand_in.grpc, stand_in.stream("t"), message(fields)) as writing:
        return writing.append([change("UPSERT", "1", **row) for row in rows])
