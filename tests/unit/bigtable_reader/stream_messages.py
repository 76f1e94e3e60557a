"""Messages of a change stream, cut as a service may cut them: a change over several, a value over several chunks."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from google.cloud.bigtable_v2.types import Mutation, ReadChangeStreamResponse, StreamContinuationToken
from hypothesis import strategies as st

from services.bigtable_reader.core.stream.records import (
    Aggregated,
    ChangeKind,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Microseconds,
    SetCell,
)

Response: Final[Any] = ReadChangeStreamResponse.pb()
RawMutation: Final[Any] = Mutation.pb()
ContinuationToken: Final[Any] = StreamContinuationToken.pb()
USER, GARBAGE_COLLECTION, CONTINUATION = 1, 2, 3

_KINDS: Final[tuple[ChangeKind, ...]] = ("USER", "GARBAGE_COLLECTION")
_DAY: Final = 86_400_000_000
_NOW: Final = 1_700_000_000_000_000

families: Final = st.sampled_from(["f", "g", "weather.2024"])
qualifiers: Final = st.binary(max_size=6)
times: Final = st.integers(-(1 << 63), (1 << 63) - 1).map(Microseconds)
instants: Final = st.integers(0, _NOW + _DAY).map(Microseconds)
values: Final = st.binary(max_size=40)

set_cells: Final = st.builds(SetCell, families, qualifiers, times, values)
entries: Final[st.SearchStrategy[Entry]] = st.one_of(
    set_cells,
    st.builds(DeleteCells, families, qualifiers, times, times),
    st.builds(DeleteFamily, families),
    st.builds(Aggregated, st.sampled_from(["ADD_TO_CELL", "MERGE_TO_CELL"]), families, qualifiers, times, values),
)


@st.composite
def data_changes(draw: st.DrawFn) -> DataChange:
    kind: ChangeKind = draw(st.sampled_from(_KINDS))
    return DataChange(
        draw(st.binary(min_size=1, max_size=12)),
        kind,
        draw(st.sampled_from(["c1", "c2"])) if kind == "USER" else "",
        draw(instants),
        draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        tuple(draw(st.lists(entries, min_size=1, max_size=8))),
        draw(st.text("abc", min_size=1, max_size=5)),
        draw(instants),
    )


def mutation(entry: Entry) -> Any:
    """Return the mutation that an entry is made of."""
    made = RawMutation()
    match entry:
        case SetCell():
            cell = made.set_cell
            cell.family_name, cell.column_qualifier = entry.family, entry.qualifier
            cell.timestamp_micros, cell.value = entry.timestamp, entry.value
        case DeleteCells():
            delete = made.delete_from_column
            delete.family_name, delete.column_qualifier = entry.family, entry.qualifier
            delete.time_range.start_timestamp_micros = entry.start
            delete.time_range.end_timestamp_micros = entry.end
        case DeleteFamily():
            made.delete_from_family.family_name = entry.family
        case Aggregated():
            added = made.add_to_cell if entry.kind == "ADD_TO_CELL" else made.merge_to_cell
            added.family_name, added.column_qualifier.raw_value = entry.family, entry.qualifier
            added.timestamp.raw_timestamp_micros, added.input.raw_value = entry.timestamp, entry.value
        case _:
            raise AssertionError(entry)
    return made


def chunks_of(entry: Entry, cuts: Sequence[int] = ()) -> Iterator[tuple[Any, int, int, bool]]:
    """Yield the chunks of an entry: mutation, size of the whole value (0: not cut), offset, and whether it is last."""
    whole = mutation(entry)
    if not isinstance(entry, SetCell) or not cuts or not entry.value:
        yield whole, 0, 0, False
        return
    bounds = sorted({0, *(cut % (len(entry.value) + 1) for cut in cuts), len(entry.value)})
    for start, end in pairwise(bounds):
        part = RawMutation()
        part.CopyFrom(whole)
        if start:  # of a later chunk only the value counts
            part.set_cell.family_name, part.set_cell.column_qualifier = "", b""
            part.set_cell.timestamp_micros = 0
        part.set_cell.value = entry.value[start:end]
        yield part, len(entry.value), start, end == len(entry.value)


def messages(change: DataChange, cuts: Sequence[Sequence[int]] = (), ends: Sequence[int] = ()) -> list[Any]:
    """Return a change as messages. ``cuts``: where the value of each entry is; ``ends``: after how many chunks."""
    chunks = [
        chunk
        for index, entry in enumerate(change.entries)
        for chunk in chunks_of(entry, cuts[index] if index < len(cuts) else ())
    ]
    bounds = sorted({0, *(end % len(chunks) for end in ends), len(chunks)})
    made = []
    for start, end in pairwise(bounds):
        message = Response()
        data = message.data_change
        if start == 0:
            data.type_ = USER if change.kind == "USER" else GARBAGE_COLLECTION
            data.row_key, data.source_cluster_id = change.row_key, change.source_cluster
            data.commit_timestamp.FromMicroseconds(change.commit)
            data.tiebreaker = change.tiebreaker
        else:
            data.type_ = CONTINUATION
        for what, size, offset, last in chunks[start:end]:
            chunk = data.chunks.add()
            chunk.mutation.CopyFrom(what)
            if size:
                info = chunk.chunk_info
                info.chunked_value_size, info.chunked_value_offset, info.last_chunk = size, offset, last
        if end == len(chunks):
            data.done, data.token = True, change.token
            data.estimated_low_watermark.FromMicroseconds(change.low_watermark)
        made.append(message)
    return made


def a_change(*what: Entry, row_key: bytes = b"row", kind: str = "USER", commit: int = _NOW, **more: Any) -> DataChange:
    """Return a change; only what matters is said."""
    return DataChange(
        row_key=row_key,
        kind="USER" if kind == "USER" else "GARBAGE_COLLECTION",
        source_cluster=more.pop("source_cluster", "c1" if kind == "USER" else ""),
        commit=Microseconds(commit),
        tiebreaker=more.pop("tiebreaker", 0),
        entries=what,
        token=more.pop("token", "token"),
        low_watermark=Microseconds(more.pop("low_watermark", commit)),
        **more,
    )


def a_cell(family: str = "f", qualifier: bytes = b"q", value: bytes = b"v", timestamp: int = _NOW) -> SetCell:
    """Return the writing of a cell."""
    return SetCell(family, qualifier, Microseconds(timestamp), value)
