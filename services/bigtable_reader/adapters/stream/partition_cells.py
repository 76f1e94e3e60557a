"""The rows of the partition table, as bytes and as values.

The table is in Bigtable, serves any number of change streams, and has four kinds of rows for each:

    <stream>#topology          shape:version   number and writer of the last change: what every change is conditional on
                               shape:about     JSON: the format, the source table, the life, when it began
                               shape:seen      JSON: what the source table was like at the last inspection
                               shape:topic     the full name of the topic that its readers publish to
                               shape:paused    there while the stream is paused; the cell's time is since when
                               shape:resync    JSON: what needs all rows to be read again (`core/resync.py`)
                               piece:<id>      JSON: a StreamRange; the cell's time is when it came to be
    <stream>#partition#<id>    partition:lease fence, renewals, claim, state: what every change is conditional on
                               partition:saved JSON: owner, position, low watermark, minimum version and reserved
                               upper limit; how it ended
    <stream>#reader#<owner>    reader:present  something new at each survey; the cell's time is Bigtable's clock
    <stream>#snapshot          shape:version, shape:snapshot, partition:<number>: see `snapshot_row.py`

A row of Bigtable changes as a whole, several do not. So all key ranges are in one row. A cell that is written again has
the timestamp 0, and so is replaced: of versions, the newest would be chosen by clocks of servers that may differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from services.bigtable_reader.adapters.bigtable.row_chunks import Cell
from services.bigtable_reader.core.schema.resync import BigtableResyncRequest, Resync, resync_request_of
from services.bigtable_reader.core.stream.partitions import RESTART_WITH_ALL_ROWS, StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import Microseconds, Position
from services.bigtable_reader.core.stream.topology import Ending, KeyRangeTopology
from shared.contracts.errors import MisconfiguredError

FAMILIES: Final = ("shape", "piece", "partition", "reader")
FORMAT: Final = 1

Column = tuple[str, bytes]
VERSION: Final[Column] = ("shape", b"version")
ABOUT: Final[Column] = ("shape", b"about")
SEEN: Final[Column] = ("shape", b"seen")
TOPIC: Final[Column] = ("shape", b"topic")
PAUSED: Final[Column] = ("shape", b"paused")
RESYNC: Final[Column] = ("shape", b"resync")
NOTE: Final = b"note:"
"""In the same family, before a kind of finding: written where no condition may be, until it is among the findings."""
LEASE: Final[Column] = ("partition", b"lease")
SAVED: Final[Column] = ("partition", b"saved")
PRESENT: Final[Column] = ("reader", b"present")

LeaseState = Literal["RUNNING", "RELEASED", "CLOSING"]


class Lease(msgspec.Struct, frozen=True):
    """Who may write a partition's row: ``claim`` is made up for each claim, ``renewals`` counts its writes."""

    fence: int
    renewals: int
    claim: str
    state: LeaseState

    def encoded(self) -> bytes:
        """Return the value of its cell."""
        return f"{self.fence:08d} {self.renewals:08d} {self.claim} {self.state}".encode()

    def renewed(self, state: LeaseState) -> "Lease":
        """Return what the next write of its holder makes of it."""
        return Lease(self.fence, self.renewals + 1, self.claim, state)


class PartitionContent(msgspec.Struct, frozen=True, rename={"min_version": "floor", "reserved_up_to": "ceiling"}):
    """What is saved of a partition.

    ``min_version``: every version that is made after this was written is above it. ``load``: records per second.
    """

    owner: str
    position: Position
    low_watermark: Microseconds
    reserved_up_to: int
    ending: Ending | None = None
    min_version: int = 0
    load: int = 0


class About(msgspec.Struct, frozen=True):
    """What a topology is of. ``table``: the full name of the source table."""

    format: int
    table: str
    life: str
    start: Microseconds


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """What a partition's row says."""

    lease: Lease
    content: PartitionContent


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """What the row of all key ranges says. ``born``: when each came to be, by Bigtable's clock.

    ``paused_since``: by that clock, too; None where the stream is not paused. ``resync``: the value of its cell, too.
    ``notes``: kinds of findings that could only be noted, and when that was.
    """

    version: bytes
    table: str
    topology: KeyRangeTopology
    born: Mapping[StreamRangeId, Microseconds]
    paused_since: Microseconds | None = None
    resync: tuple[bytes, Resync] | None = None
    notes: Mapping[str, Microseconds] = field(default_factory=dict)
    topic: str | None = None

    @property
    def resync_request(self) -> BigtableResyncRequest | None:
        """Return what needs all rows to be read again; None where nothing does."""
        return None if self.resync is None else resync_request_of(self.table, self.resync[1])


@dataclass(frozen=True, slots=True)
class Presence:
    """What a reader's row says: something new at each survey, and when that was, by Bigtable's clock."""

    nonce: bytes
    at: Microseconds


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of a stream. That of the key ranges was read after those of the partitions."""

    topology: TopologyRow | None
    partitions: Mapping[StreamRangeId, PartitionRow]
    readers: Mapping[str, Presence]


def topology_of(key: bytes, cells: Sequence[Cell]) -> TopologyRow:
    """Return what the cells of the row of all key ranges say; MisconfiguredError where no reader wrote that."""
    found = {(cell.family, cell.qualifier): cell for cell in cells}
    try:
        version, about = found[VERSION].value, found[ABOUT].value
        life = msgspec.json.decode(about, type=About)
        if life.format > FORMAT:
            raise MisconfiguredError(
                "partition-row-newer", f"{shown(key)} is of a newer version of this reader: upgrade this one"
            )
        stream_ranges = {
            cell.qualifier: msgspec.json.decode(cell.value, type=StreamRange)
            for cell in cells
            if cell.family == "piece"
        }
        topology = KeyRangeTopology(
            life=life.life,
            version=int(version.split()[0]),
            start=life.start,
            stream_ranges=tuple(sorted(stream_ranges.values(), key=lambda stream_range: stream_range.range)),
        )
        kept = found.get(RESYNC)
        resync = None if kept is None else (kept.value, msgspec.json.decode(kept.value, type=Resync))
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise MisconfiguredError("partition-row-damaged", _not_ours(key, error)) from error
    born = {
        stream_range.id: Microseconds(found["piece", name].timestamp) for name, stream_range in stream_ranges.items()
    }
    paused = found.get(PAUSED)
    paused_since = None if paused is None else Microseconds(paused.timestamp)
    notes = {
        name.removeprefix(NOTE).decode(): Microseconds(cell.timestamp)
        for (family, name), cell in found.items()
        if family == "shape" and name.startswith(NOTE)
    }
    topic = found[TOPIC].value.decode(errors="replace") if TOPIC in found else None
    return TopologyRow(version, life.table, topology, born, paused_since, resync, notes, topic)


def partition_of(key: bytes, cells: Sequence[Cell]) -> PartitionRow:
    """Return what the cells of a partition's row say; MisconfiguredError where no reader wrote that."""
    found = {(cell.family, cell.qualifier): cell.value for cell in cells}
    try:
        fence, renewals, claim, state = found[LEASE].decode().split()
        lease = msgspec.convert(
            {"fence": int(fence), "renewals": int(renewals), "claim": claim, "state": state}, type=Lease
        )
        return PartitionRow(lease, msgspec.json.decode(found[SAVED], type=PartitionContent))
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise MisconfiguredError("partition-row-damaged", _not_ours(key, error)) from error


def _not_ours(key: bytes, error: Exception) -> str:
    return (
        f"row {shown(key)} of the partition table is not what a reader wrote ({error}): it was changed from outside, "
        f"or cells of it were deleted by a garbage collection rule. {RESTART_WITH_ALL_ROWS}"
    )


def shown(key: bytes) -> str:
    """Return the key of a row as it is shown."""
    return key.decode("utf-8", "backslashreplace")
