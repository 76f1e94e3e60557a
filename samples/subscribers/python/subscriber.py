"""A subscriber of Millrace's topic: it keeps the newest version of each row, and prints each change as a line of JSON.

Usage: python subscriber.py projects/PROJECT/subscriptions/SUBSCRIPTION
"""

import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

from google.cloud.pubsub_v1 import SubscriberClient

NEWEST_FORMAT = 2

lock = threading.Lock()  # the client calls `receive` in several threads
newest: dict[str, tuple[str, Any]] = {}
"""Row id to sequence and row. A deleted row stays here as None, so that an older upsert does not bring it back."""


class RefusedError(Exception):
    """This subscriber can neither apply nor acknowledge the message."""


def decode(attributes: Mapping[str, str], data: bytes) -> Any:
    """Return the change batch in a message. RefusedError if there is none, or its format is newer."""
    if not attributes.get("format", "").isdecimal():
        raise RefusedError("no change batch: it has no attribute format")
    if int(attributes["format"]) > NEWEST_FORMAT:
        raise RefusedError(
            f"wire format {attributes['format']}, this subscriber reads up to {NEWEST_FORMAT}: upgrade it"
        )
    try:
        batch = json.loads(data)
        changes = list(zip(batch["op"], batch["keys"], batch["rows"], batch["sequence"], strict=True))
        complete = isinstance(batch["header"]["table"], str) and all(
            (op == "DELETE") == (row is None) for op, _key, row, _sequence in changes
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError("no change batch: its data does not read as one") from error
    if not complete:
        raise RefusedError("no change batch: an upsert has a row, a delete has none")
    return batch


def apply(batch: Any) -> None:
    """Keep each change that is newer than the known version of its row. A greater sequence is newer."""
    table = batch["header"]["table"]
    for op, key, row, sequence in zip(batch["op"], batch["keys"], batch["rows"], batch["sequence"], strict=True):
        row_id = json.dumps([table, key], sort_keys=True)
        is_newest = row_id not in newest or newest[row_id][0] < sequence
        if is_newest:
            newest[row_id] = sequence, row
        print(json.dumps({"table": table, "op": op, "key": key, "row": row, "newest": is_newest}), flush=True)


def receive(message: Any) -> None:
    """Apply a message and acknowledge it, or give it back."""
    with lock:
        try:
            apply(decode(message.attributes, message.data))
        except RefusedError as refused:
            print(f"message {message.message_id} refused: {refused}", file=sys.stderr, flush=True)
            message.nack()
            return
    message.ack()


def main() -> None:
    """Receive messages until Ctrl-C."""
    with SubscriberClient() as client:
        receiving = client.subscribe(sys.argv[1], receive)
        try:
            receiving.result()
        except KeyboardInterrupt:
            receiving.cancel()
            receiving.result()


if __name__ == "__main__":
    main()
