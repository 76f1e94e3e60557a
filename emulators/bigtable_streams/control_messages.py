"""What can be asked of the front and not of Bigtable: the messages of its control calls, for both of their ends.

Each is sent as JSON to the gRPC method of its name, as ``/millrace.BigtableFront/Split``, on the port of the API.
"""

from typing import Final, Literal

import msgspec

SERVICE: Final = "/millrace.BigtableFront/"


class Done(msgspec.Struct, frozen=True):
    """Whether there was anything to do."""

    done: bool = True


class Split(msgspec.Struct, frozen=True):
    """Cut the partition that holds a key in two, the second one starting at the key."""

    table: str
    at: bytes


class Merge(msgspec.Struct, frozen=True):
    """Join the partition that starts at a key with the one before it."""

    table: str
    at: bytes


class Repartition(msgspec.Struct, frozen=True):
    """Let the partitions start at these keys, and at the start of the table, all at once."""

    table: str
    starts: list[bytes]


class Move(msgspec.Struct, frozen=True):
    """Close the partition that holds a key, and serve a new one with the same range."""

    table: str
    at: bytes


class Trim(msgspec.Struct, frozen=True):
    """Forget what was committed before a time (microseconds since the epoch), or all: positions before it expire."""

    table: str
    before: int | None = None


class StallWatermark(msgspec.Struct, frozen=True):
    """Let a table's low watermark stand still, or go on."""

    table: str
    stalled: bool = True


class CutStreams(msgspec.Struct, frozen=True):
    """Break off the streams of a table that are open, each after some more messages, maybe within a change."""

    table: str
    after_messages: int = 0
    status: str = "UNAVAILABLE"


class ServeStreams(msgspec.Struct, frozen=True):
    """Set how streams are served from now on; what is None stays as it is.

    ``held``: no changes are delivered, only heartbeats and CloseStream. The rest: seconds after each change, and how
    finely changes are cut.
    """

    held: bool | None = None
    seconds_per_change: float | None = None
    value_bytes: int | None = None
    message_bytes: int | None = None
    message_chunks: int | None = None


class Replicate(msgspec.Struct, frozen=True):
    """Let a write that another cluster took arrive here: applied as far as it wins, and put into the stream.

    ``mutations`` are serialized `google.bigtable.v2.Mutation`s. ``commit`` is when that cluster took it (microseconds
    since the epoch, not in the future); without ``tiebreaker`` that of the cluster.
    """

    table: str
    row_key: bytes
    mutations: list[bytes]
    commit: int
    cluster: str
    tiebreaker: int | None = None


class CollectGarbage(msgspec.Struct, frozen=True):
    """Apply the garbage-collection rules of a table once."""

    table: str


class Collected(msgspec.Struct, frozen=True):
    """How many cells, in how many rows, were collected."""

    rows: int
    cells: int


class AddCluster(msgspec.Struct, frozen=True):
    """Let an instance have another cluster, which profiles may route to."""

    instance: str
    cluster: str


class AddFault(msgspec.Struct, frozen=True):
    """Let something go wrong; see `faults.Fault`."""

    method: str = ""
    status: str = "UNAVAILABLE"
    message: str = "fault on demand"
    when: Literal["before", "after"] = "before"
    action: Literal["refuse", "stall"] = "refuse"
    containing: bytes = b""
    times: int | None = None


class FaultAdded(msgspec.Struct, frozen=True):
    """The number to remove a fault by."""

    fault: int


class ClearFaults(msgspec.Struct, frozen=True):
    """Remove one fault, or all."""

    fault: int | None = None


class AdvanceClock(msgspec.Struct, frozen=True):
    """Put the front's clock forward: commit times, retention and garbage collection go by it."""

    seconds: float


class Describe(msgspec.Struct, frozen=True):
    """Ask what there is of a table's change stream."""

    table: str


class OpenStreamDescription(msgspec.Struct, frozen=True):
    """One stream that is being read, and how many records it has not delivered."""

    start: bytes
    end: bytes
    behind: int


class Description(msgspec.Struct, frozen=True):
    """A table's change stream: since when, partitions as (start, end), how many records it has had, readers."""

    enabled: bool
    now: int
    since: int
    partitions: list[tuple[bytes, bytes]]
    records: int
    streams: list[OpenStreamDescription]
    streams_opened: int
    faults_met: int
