"""A Bigtable table with rows of before, and the snapshot command beside its readers."""

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from services.bigtable_reader.core.snapshot.snapshot import SnapshotPart
from shared.contracts.change_batch import ChangeBatch
from tests.integration.bigtable_front import INSTANCE, FrontTable
from tests.worlds.bigtable_pipeline import BigtablePipeline

TIMEOUT = timedelta(seconds=120)


class Snapshotting(BigtablePipeline):
    """A pipeline that notes which snapshot rows came how often, and which snapshots were announced as complete."""

    noted = ("snapshot",)

    def apply(self, batch: ChangeBatch) -> None:
        """Note what has arrived, and which snapshots are complete."""
        if isinstance(batch.header.complete_since, str):
            self.lines.add(batch.header.complete_since)
        super().apply(batch)

    def command(self, *arguments: str, **variables: str) -> tuple[int | None, str]:
        """Run a command beside the reader to its end."""
        return self.run_command("snapshot", *arguments, **variables)

    def wait_until_complete(self, number: int) -> None:
        """Wait until so many snapshots are complete."""
        self.wait(lambda: len(self.lines) >= number, "the end of a snapshot", self.pull, TIMEOUT)

    def delete_missing_rows(self) -> None:
        """Forget what no snapshot brought since the last that was complete, as the consumer's command does."""
        since = max(self.lines)
        self.newest = {key: found for key, found in self.newest.items() if found[0] >= since}

    def saved(self) -> Mapping[int, SnapshotPart]:
        """Return how far each part is."""
        parts = FrontTable(self.table.front, f"{INSTANCE}/tables/{self.partitions}").rows()
        (snapshot,) = (cells for key, cells in parts.items() if key.endswith(b"#snapshot"))
        newest = {cell[:2]: value for cell, value in sorted(snapshot.items(), key=lambda one: one[0][2])}
        found = [
            msgspec.json.decode(value, type=SnapshotPart) for (family, _), value in newest.items() if family != "shape"
        ]
        return {part.number: part for part in found}
