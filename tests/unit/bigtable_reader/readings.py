"""What tests of the reader's loop are made of: outputs, a held partition, records."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition
from services.bigtable_reader.core.changes.entries import EntryMaker
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker, RowCells
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.changes.refused import Made
from services.bigtable_reader.core.stream.partitions import BigtablePartition, StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import (
    ALL_KEYS,
    DataChange,
    KeyRange,
    Microseconds,
    Position,
    RangeToken,
    SetCell,
)
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import Change, Header
from tests.fakes.bigtable_table import EPOCH

SOURCE = "//bigtable.googleapis.com/projects/p/instances/i/changeStreams/weather"
FAMILIES = ("f", "g")


def outputs(*, images: bool = True, entries: bool = False, options: BigtableOptions | None = None) -> Outputs:
    """Return what makes changes of a table `weather` with the families f and g."""
    options = options or BigtableOptions()
    watched = Watched(options)
    return Outputs(
        watched=watched,
        images=ImageMaker(
            source=SOURCE, table="weather", options=options, families=FAMILIES, buckets=4, watched=watched
        )
        if images
        else None,
        entries=EntryMaker(source=SOURCE, table="weather", instance="i", options=options, buckets=4, watched=watched)
        if entries
        else None,
    )


def image_maker(options: BigtableOptions | None = None) -> ImageMaker:
    """Return what makes images of that table."""
    images = outputs(options=options).images
    assert images is not None
    return images


def entry_maker(options: BigtableOptions | None = None) -> EntryMaker:
    """Return what makes lines of that table's change log."""
    entries = outputs(images=False, entries=True, options=options).entries
    assert entries is not None
    return entries


def a_stream_range(name: str = "p", keys: KeyRange = ALL_KEYS, **more: object) -> StreamRange:
    """Return a key range that is read behind a token, unless something else is said."""
    position = Position((RangeToken(keys, "t"),))
    known = {"position": position, "min_version": 0, "low_watermark": EPOCH}
    return StreamRange(id=StreamRangeId(name), range=keys, **(known | more))  # type: ignore[arg-type]


def a_partition(
    range_: KeyRange = ALL_KEYS, *, min_version: int = 0, reserved_up_to: int | None = None
) -> BigtablePartition:
    """Return a partition that is held, of a key range that is read from a time."""
    position = Position(start=EPOCH)
    stream_range = a_stream_range("p1", range_, position=position, min_version=min_version)
    return BigtablePartition(
        stream_range=stream_range,
        position=position,
        low_watermark=EPOCH,
        min_version=min_version,
        reserved_up_to=min_version if reserved_up_to is None else reserved_up_to,
        fence=1,
        owner="reader",
    )


def an_owned(partition: BigtablePartition | None = None, *, seconds: float = 1_000) -> BigtableOwnedPartition:
    """Return a held partition whose lease is trusted for so long."""
    owned = BigtableOwnedPartition(partition or a_partition(reserved_up_to=2 * EPOCH))
    owned.trusted_until = asyncio.get_running_loop().time() + seconds
    return owned


def a_record(row_key: bytes, number: int = 1) -> DataChange:
    """Return a record of one cell."""
    return DataChange(
        row_key=row_key,
        kind="USER",
        source_cluster="c1",
        commit=Microseconds(EPOCH + number),
        tiebreaker=0,
        entries=(SetCell("f", b"q", Microseconds(number * 1_000), b"v"),),
        token=f"t{number}",
        low_watermark=EPOCH,
    )


def folded(batches: Sequence[tuple[Header, Sequence[Change]]]) -> Mapping[bytes, Change]:
    """Return the newest change of each row, as a consumer applies them: by sequence, whatever the order."""
    newest: dict[bytes, Change] = {}
    for header, changes in batches:
        if header.content != "images":
            continue
        for change in changes:
            row_key = msgspec.json.decode(change.key)["row_key"].encode()
            if row_key not in newest or change.sequence > newest[row_key].sequence:
                newest[row_key] = change
    return newest


def image_of(cells: RowCells | None) -> str | None:
    """Return the row that an image of these cells has; None where there is no row."""
    made = image_maker().image(b"any", cells, a_record(b"any"), 1)
    assert isinstance(made, Made)
    return made.change.row
