"""The messages of a change as a front sends them, put together by the documented rules, which are checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.cloud.bigtable_v2 import types as data_types

_Mutation: Final[Any] = data_types.Mutation.pb()
_DataChange: Final = data_types.ReadChangeStreamResponse.pb().DataChange


@dataclass(frozen=True)
class ReadRecord:
    """One change as it was put together. ``entries`` are mutations with whole values; times in microseconds."""

    row_key: bytes
    kind: int
    cluster: str
    commit: int
    tiebreaker: int
    entries: tuple[Any, ...]

    @property
    def identity(self) -> tuple[bytes, int, int, str]:
        """Return what no two changes have in common."""
        return self.row_key, self.commit, self.tiebreaker, self.cluster


def put_together(messages: Sequence[Any]) -> ReadRecord:
    """Return the change that the messages make up; AssertionError where they break the documented rules."""
    first, last = messages[0], messages[-1]
    user = first.type_ == _DataChange.Type.Value("USER")
    assert user or first.type_ == _DataChange.Type.Value("GARBAGE_COLLECTION")
    assert bool(first.source_cluster_id) is user
    assert first.row_key
    assert first.HasField("commit_timestamp")
    assert last.token
    assert last.HasField("estimated_low_watermark")
    for message in messages[1:]:
        assert message.type_ == _DataChange.Type.Value("CONTINUATION")
        assert not message.row_key
        assert not message.HasField("commit_timestamp")
    for message in messages[:-1]:
        assert not message.done
        assert not message.token
    entries: list[Any] = []
    parts: list[bytes] = []
    for chunk in (chunk for message in messages for chunk in message.chunks):
        info = chunk.chunk_info
        if not chunk.HasField("chunk_info"):
            assert not parts
            entries.append(chunk.mutation)
            continue
        assert info.chunked_value_offset == sum(map(len, parts))
        if not parts:
            entries.append(_Mutation.FromString(chunk.mutation.SerializeToString()))
        parts.append(chunk.mutation.set_cell.value)
        if info.last_chunk:
            whole = b"".join(parts)
            assert len(whole) == info.chunked_value_size
            entries[-1].set_cell.value = whole
            parts = []
    assert not parts
    assert entries
    return ReadRecord(
        row_key=first.row_key,
        kind=first.type_,
        cluster=first.source_cluster_id,
        commit=first.commit_timestamp.ToMicroseconds(),
        tiebreaker=first.tiebreaker,
        entries=tuple(entries),
    )
