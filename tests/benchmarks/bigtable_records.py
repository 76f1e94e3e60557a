"""CPU per record of a Bigtable change stream: the reader's functions beside the generated clients' own classes.

From the bytes of each ReadChangeStreamResponse to the bytes of each PublishRequest, nothing sent: what gRPC costs comes
on top for both (in Python tens of microseconds for each message of a stream). The baseline is a program with the
classes of `google.cloud.bigtable_v2` and `google.pubsub_v1`: one JSON message for each entry under the names of
Google's template, a hundred messages in a request. Run as ``python -m tests.benchmarks.bigtable_records [RECORDS]``;
each figure is the best of five, since whatever else runs here can only add.
"""

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from google.cloud.bigtable_v2.types import ReadChangeStreamResponse
from google.pubsub_v1.types import PublishRequest, PubsubMessage

from services.bigtable_reader.core.changes.entries import EntryMaker
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import CellVersion, ImageMaker, RowCells, Trigger
from services.bigtable_reader.core.stream.merging import Merging
from services.bigtable_reader.core.stream.records import DataChange
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import Change, Header
from shared.pubsub.packer import Packer
from shared.pubsub.publisher import batch_message

_Response: Final[Any] = ReadChangeStreamResponse.pb()
_PublishRequest: Final[Any] = PublishRequest.pb()
_TOPIC: Final = "projects/p/topics/t"
_RUNS: Final = 5
_AT_ONCE: Final = 500
"""Records that are packed together: about what comes while a request is under way."""
_QUALIFIERS: Final = (b"temp", b"dewp", b"wind")
_VALUE: Final = b"x" * 90

_OPTIONS: Final = BigtableOptions()
_WATCHED: Final = Watched(_OPTIONS)


def responses(records: int) -> list[bytes]:
    """Return messages of one record each: three cells of 90 bytes, some 440 bytes in all."""
    return [_response(number) for number in range(records)]


def _response(number: int) -> bytes:
    message = _Response()
    change = message.data_change
    change.type_, change.source_cluster_id = 1, "c1"
    change.row_key = b"station#JFK#%08d" % number
    change.commit_timestamp.FromMicroseconds(1_700_000_000_000_000 + 1_013 * number)
    for qualifier in _QUALIFIERS:
        cell = change.chunks.add().mutation.set_cell
        cell.family_name, cell.column_qualifier, cell.value = "w", qualifier, _VALUE
        cell.timestamp_micros = 1_700_000_000_000_000 + 1_000 * number
    change.done, change.token = True, f"token-{number:040}"
    change.estimated_low_watermark.FromMicroseconds(1_700_000_000_000_000 + 1_013 * number)
    return bytes(message.SerializeToString())


def change_log(stream: Sequence[bytes]) -> int:
    """Make a change log of a stream; return how many bytes would be published."""
    merging = Merging()
    entries = EntryMaker(source="s", table="t", instance="i", options=_OPTIONS, buckets=16, watched=_WATCHED)

    def made() -> Iterator[tuple[Header, list[tuple[str, Change]]]]:
        for data in stream:
            record = merging.take(_Response.FromString(data))
            if isinstance(record, DataChange):
                yield entries.header, entries.changes(record)[0]

    return _published(made())


def images(stream: Sequence[bytes]) -> int:
    """Make images of rows that are there already: what reading them back costs is not in it."""
    merging = Merging(keep="number")
    maker = ImageMaker(source="s", table="t", options=_OPTIONS, families=["w"], buckets=16, watched=_WATCHED)
    cells: RowCells = {"w": {qualifier: [CellVersion(0, _VALUE)] for qualifier in _QUALIFIERS}}

    def made() -> Iterator[tuple[Header, list[tuple[str, Change]]]]:
        for version, data in enumerate(stream):
            record = merging.take(_Response.FromString(data))
            if isinstance(record, DataChange) and _WATCHED.calls_for_image(record):
                image = maker.image(record.row_key, cells, Trigger.of(record), version)
                yield image.header, [(image.ordering_key, image.change)]

    return _published(made())


def _published(made: Iterator[tuple[Header, list[tuple[str, Change]]]]) -> int:
    packer, size = Packer(), 0
    for number, (header, changes) in enumerate(made, 1):
        packer.add(header, changes, announce_under="t/0")
        if number % _AT_ONCE == 0:
            size += _sent(packer)
    return size + _sent(packer)


def _sent(packer: Packer) -> int:
    size = 0
    while requests := list(packer.requests()):
        for request in requests:
            messages = [batch_message(message, request.ordering_key) for message in request.messages]
            size += len(_PublishRequest(topic=_TOPIC, messages=messages).SerializeToString())
            packer.confirm(request.ordering_key)
    return size


def generated_classes(stream: Sequence[bytes]) -> int:
    """Do the like with the generated clients' classes."""
    size, messages = 0, []
    for data in stream:
        change = ReadChangeStreamResponse.deserialize(data).data_change
        for chunk in change.chunks:
            cell = chunk.mutation.set_cell
            line = {
                "rowKey": change.row_key.decode(),
                "modType": "SET_CELL",
                "isGC": change.type_.name == "GARBAGE_COLLECTION",
                "tieBreaker": change.tiebreaker,
                "commitTimestamp": int(change.commit_timestamp.timestamp() * 1e6),
                "columnFamily": cell.family_name,
                "column": cell.column_qualifier.decode(),
                "timestamp": cell.timestamp_micros,
                "value": base64.b64encode(cell.value).decode(),
                "sourceInstance": "i",
                "sourceCluster": change.source_cluster_id,
                "sourceTable": "t",
                "token": change.token,
                "lowWatermark": change.estimated_low_watermark.isoformat(),
            }
            messages.append(PubsubMessage(data=json.dumps(line).encode(), attributes={"table": "t"}))
        if len(messages) >= 100:
            size += len(PublishRequest.serialize(PublishRequest(topic=_TOPIC, messages=messages)))
            messages = []
    return size + len(PublishRequest.serialize(PublishRequest(topic=_TOPIC, messages=messages)))


def microseconds(work: Callable[[Sequence[bytes]], int], stream: Sequence[bytes]) -> float:
    """Return the CPU of one record, in microseconds: the best of the runs."""
    found = []
    for _ in range(_RUNS):
        began = time.process_time()
        if not work(stream):
            raise AssertionError("nothing was made")
        found.append((time.process_time() - began) * 1e6 / len(stream))
    return min(found)


def main(records: int) -> None:
    """Print the figures."""
    stream = responses(records)
    baseline = microseconds(generated_classes, stream)
    out = sys.stdout.write
    out(f"{records} records of {len(stream[0])} bytes, three entries each; CPU without gRPC\n")
    out(f"generated classes  {baseline:7.1f} us/record  {1e6 / baseline:9.0f} records/CPU-s\n")
    for name, work in (("change log", change_log), ("images", images)):
        ours = microseconds(work, stream)
        out(f"{name:<17}  {ours:7.1f} us/record  {1e6 / ours:9.0f} records/CPU-s  {baseline / ours:5.1f} x\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
