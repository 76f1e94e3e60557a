"""Rows in a file, in the order in which they came: of any number, a page in memory at a time."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


class SpooledRows:
    """The Spool in a directory that nothing else is in."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rows.arrow"
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Take some rows."""
        if len(rows) == 0:
            return
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._path, rows.schema)
        self._writer.write_table(rows.combine_chunks())
        self.rows += len(rows)

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows, as many at a time as were added."""
        if self.rows == 0:
            return
        self.close()
        with pa.memory_map(str(self._path)) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def clear(self) -> None:
        """Forget all rows."""
        self.close()
        self._path.unlink(missing_ok=True)
        self.rows = 0

    def close(self) -> None:
        """Write what is held; then no more can be added."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def spooled() -> Iterator[SpooledRows]:
    """Make room for rows, for the block."""
    with tempfile.TemporaryDirectory(prefix="millrace-sweep-") as directory:
        rows = SpooledRows(Path(directory))
        try:
            yield rows
        finally:
            rows.close()
