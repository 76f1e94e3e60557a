"""Who reads which piece, and how far all of them have come."""

from collections.abc import Collection, Mapping
from typing import Final

from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, Piece, PieceId, uncovered
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds

_NOTHING_MORE: Final[Mapping[PieceId, Microseconds]] = {}


def has_reached(piece: Piece, survey: BigtablePartitionSurvey, end: Microseconds | None) -> bool:
    """Return whether nothing of a piece is left to read up to ``end`` (inclusive)."""
    return end is not None and _reached(piece, survey) > end


def claimable(survey: BigtablePartitionSurvey, holding: Collection[PieceId], end: Microseconds | None) -> list[Piece]:
    """Return the pieces that may be read, are free, and not held already; those that are furthest behind first."""
    found = [
        piece
        for piece in survey.pieces
        if piece.id not in holding and _is_due(piece, survey, end) and _is_free(piece, survey)
    ]
    return sorted(found, key=lambda piece: (_reached(piece, survey), piece.range))


def fair_share(survey: BigtablePartitionSurvey, end: Microseconds | None) -> int:
    """Return how many pieces a reader may hold, so that every one that may be read finds a reader."""
    due = sum(_is_due(piece, survey, end) for piece in survey.pieces)
    return -(-due // max(1, len(survey.readers)))


def unread(survey: BigtablePartitionSurvey) -> list[KeyRange]:
    """Return the keys that no present reader reads, in their order; for a moment that may be any.

    Their pieces are free, wait for the rest of a merge or for a token, have ended a moment ago, or are of a reader
    that has not been seen for a lease.
    """
    read = []
    for piece in survey.pieces:
        saved = survey.saved.get(piece.id)
        if saved is not None and saved.state == "RUNNING" and saved.owner in survey.readers:
            read.append(piece.range)
    return uncovered(read)


def low_watermark(
    survey: BigtablePartitionSurvey, unsaved: Mapping[PieceId, Microseconds] = _NOTHING_MORE
) -> Microseconds:
    """Return the time up to which, by estimate, all is confirmed; ``unsaved``: of pieces, what is not saved yet."""
    return min(unsaved.get(piece.id, _reached(piece, survey)) for piece in survey.pieces)


def _is_due(piece: Piece, survey: BigtablePartitionSurvey, end: Microseconds | None) -> bool:
    saved = survey.saved.get(piece.id)
    is_closed = saved is not None and saved.state != "RUNNING"
    return piece.is_readable and not is_closed and not has_reached(piece, survey, end)


def _is_free(piece: Piece, survey: BigtablePartitionSurvey) -> bool:
    saved = survey.saved.get(piece.id)
    return saved is None or saved.free


def _reached(piece: Piece, survey: BigtablePartitionSurvey) -> Microseconds:
    saved = survey.saved.get(piece.id)
    return piece.low_watermark if saved is None else saved.low_watermark
