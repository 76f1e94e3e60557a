"""Rows in a directory, in buckets by their keys: what two sides have to compare, of any size, a bucket at a time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import numpy as np
import pyarrow as pa

from services.cdc_consumer.core.reconcile.row_keys import buckets_of, key_texts
from services.cdc_consumer.core.types.types import ColumnType

BUFFER_BYTES: Final = 64 << 20
"""How much is held in memory before it is written."""


class DiskRowBuckets:
    """The rows of one side. They are added in any order, and read once all of them are there."""

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        key: Mapping[str, ColumnType],
        buckets: int,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        directory.mkdir()
        self._directory = directory
        self._schema = schema
        self._key = key
        self._buffer_bytes = buffer_bytes
        self._buffered: list[pa.Table] = []
        self._bytes = 0
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}
        self.buckets = buckets
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Take some rows."""
        if len(rows) == 0:
            return
        self._buffered.append(rows)
        self.rows += len(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._buffer_bytes:
            self._write()

    def finish(self) -> None:
        """Write what is held."""
        self._write()
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def read(self, bucket: int) -> pa.Table:
        """Return the rows of a bucket; once all is written."""
        path = self._path(bucket)
        if not path.exists():
            return self._schema.empty_table()
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            return reader.read_all()

    def forget(self, bucket: int) -> None:
        """Give the room of a bucket back."""
        self._path(bucket).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self) -> None:
        if not self._buffered:
            return
        rows = pa.concat_tables(self._buffered).combine_chunks()
        self._buffered, self._bytes = [], 0
        buckets = buckets_of(key_texts(rows, self._key), self.buckets)
        order = np.argsort(buckets, kind="stable")
        rows = rows.take(pa.array(order))
        found, starts = np.unique(buckets[order], return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        for bucket, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            if bucket not in self._writers:
                self._writers[bucket] = pa.ipc.new_stream(self._path(bucket), self._schema)
            self._writers[bucket].write_table(rows.slice(start, end - start))

    def _path(self, bucket: int) -> Path:
        return self._directory / f"{bucket}.arrow"
