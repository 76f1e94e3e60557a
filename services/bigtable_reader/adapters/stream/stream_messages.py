"""Changes of a change stream as messages of our own, in fewer objects than Bigtable's.

A field that may be there once and comes again is merged: what it repeats is added up (protobuf.dev, Encoding, "Last
One Wins"). So the chunks of a change are one message here, which says at once whether any value is cut, and has all
entries.

Source of the fields and their numbers: google/bigtable/v2/bigtable.proto.
"""

from typing import Any, Final

from google.cloud.bigtable_v2.types import Mutation
from google.protobuf.timestamp_pb2 import Timestamp

from shared.streams.own_messages import BOOL, BYTES, INT32, STRING, Field, message_classes


def _message(name: str, entries: Any) -> Any:
    package = f"millrace.{name}"
    return message_classes(
        package,
        {
            "Chunks": [Field(1, "chunk_info", BYTES), Field(2, "mutations", entries, repeated=True)],
            "Change": [
                Field(1, "type_", INT32),
                Field(2, "source_cluster_id", STRING),
                Field(3, "row_key", BYTES),
                Field(4, "commit_timestamp", Timestamp.DESCRIPTOR.full_name),
                Field(5, "tiebreaker", INT32),
                Field(6, "chunks", f"{package}.Chunks"),
                Field(8, "done", BOOL),
                Field(9, "token", STRING),
                Field(10, "estimated_low_watermark", Timestamp.DESCRIPTOR.full_name),
            ],
            "Message": [Field(1, "data_change", f"{package}.Change")],
        },
        of=[Mutation.pb().DESCRIPTOR, Timestamp.DESCRIPTOR],
    )["Message"]


CHANGE_WITH_ENTRIES: Final[Any] = _message("changes", Mutation.pb().DESCRIPTOR.full_name)
"""A message of the stream with nothing but the change, if it is one. Its entries are of Bigtable's class."""
CHANGE_WITHOUT_ENTRIES: Final[Any] = _message("keys", BYTES)
"""The same with its entries as bytes: how many there are is what is asked."""
