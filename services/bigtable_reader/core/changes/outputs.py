"""What is made of a table's records: images, lines of a change log, or both."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.bigtable_reader.core.changes.entries import EntryMaker
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.stream.merging import Kept
from shared.contracts.change_batch import Header


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is watched of a table, and what makes changes of it; None for what is not wanted."""

    watched: Watched
    images: ImageMaker | None
    entries: EntryMaker | None

    def __post_init__(self) -> None:
        if self.images is None and self.entries is None:
            raise ValueError("nothing would be published")

    @property
    def kept(self) -> Kept:
        """Return what these need of a record's entries."""
        if self.entries is not None:
            return "all" if self.entries.has_values else "names"
        return "names" if self.watched.chooses_entries else "number"

    @property
    def headers(self) -> Sequence[Header]:
        """Return the headers as they are now."""
        return [maker.header for maker in (self.images, self.entries) if maker is not None]
