"""The end of a snapshot, said in the topic: every row of the table is published, under a number or a higher one."""

from collections.abc import Sequence

import msgspec
import structlog

from services.bigtable_reader.core.images import ImageMaker
from services.bigtable_reader.core.records import KeyRange
from services.bigtable_reader.core.snapshot import Snapshot
from services.bigtable_reader.ports import Publisher, SnapshotStore
from shared.contracts.change_sequence import four_sections


class SnapshotEnds:
    """Says it, at least once; whichever reader comes to see it.

    ``keys`` that this reader watches: whoever asked for the snapshot may have had another tables file.
    """

    def __init__(
        self, store: SnapshotStore, images: ImageMaker, publisher: Publisher, keys: Sequence[KeyRange]
    ) -> None:
        self._store = store
        self._images = images
        self._publisher = publisher
        self._keys = keys

    def is_to_be_told(self, snapshot: Snapshot) -> bool:
        """Tell whether all rows were read and confirmed, and nobody has said so."""
        return snapshot.untold and snapshot.covers(self._keys)

    async def tell(self, snapshot: Snapshot) -> None:
        """Publish it, and remember that, in this order. TransientError, MisconfiguredError."""
        since = snapshot.complete_since
        if since is None:
            return
        header = msgspec.structs.replace(
            self._images.header, origin="snapshot", complete_since=str(four_sections(since))
        )
        await (await self._publisher.publish(header, []))
        await self._store.told(snapshot.run)
        structlog.get_logger().info("snapshot_complete", table=header.table, complete_since=header.complete_since)
