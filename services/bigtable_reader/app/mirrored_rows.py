"""Which rows of the table are mirrored, and what makes changes of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.stream.records import KeyRange


@dataclass(frozen=True, slots=True)
class MirroredRows:
    """The watched rows of the table: the ranges of their keys, and what makes images of them."""

    images: ImageMaker
    keys: Sequence[KeyRange]
    watching: str = ""
    """The digest of everything that is watched: who requested a snapshot may have had another tables file."""

    @property
    def table(self) -> str:
        """Return the name of the table."""
        return self.images.header.table
