"""The rows of the table as they would be published, to be compared with a mirror: the command ``rows``.

Rows are read and made into changes as a snapshot's are (`snapshot_source.py`), under the minimum of their keys before
the reading: a change that the answer does not show has a higher number. What is published is what the table says of
some keys: the row, or that there is none; any later change wins over it. A row that Bigtable does not read, because it
is too large, is one that no mirror can hold: it exists, and its contents are unknown.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Final

import msgspec

from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.core.changes.refused import Made, RefusedChange
from services.bigtable_reader.core.snapshot.snapshot import SnapshotPlace, behind, common, min_version_under
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange
from services.bigtable_reader.ports import CurrentRows, ReadRefusedError, TableScan
from shared.contracts.change_batch import encode_batch
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Describe, Done, Key, Publish, Read, ReadKeys
from shared.contracts.timestamps import format_microseconds
from shared.reading.publishing import ChangePublisher
from shared.runtime.portions import cut
from shared.runtime.retries import retried, retrying_async
from shared.runtime.stop import Stop

RETRY_BUDGET: Final = timedelta(seconds=60)
"""How long a reading that is interrupted is begun again behind its last row."""
_SECONDS: Final = 60
"""How long a publishing waits for minimums to rise above what is applied, by a reserve of versions or two. Where they
are further ahead of the clocks than that, it is requested again."""
_ROWS: Final = 500
_LATEST: Final = (1 << 64) - 1
"""In the place of a claim: newer than what the snapshot has read under this minimum, and older than the next one."""


class BigtableSourceRows:
    """The mirrored rows of the table, as they would be published."""

    def __init__(
        self,
        mirrored: MirroredRows,
        key_of: Callable[[str], bytes],
        scan: TableScan,
        rows: CurrentRows,
        survey: Callable[[], Awaitable[tuple[BigtablePartitionSurvey, int]]],
        publisher: Callable[[], AbstractAsyncContextManager[ChangePublisher]],
    ) -> None:
        """``survey`` returns the key ranges of the stream, and the run of the latest snapshot.

        ``publisher`` opens one, or raises MisconfiguredError where the topic would lose what is published. ``key_of``
        returns the row key that the mirror has as a text, MisconfiguredError where there is none.
        """
        self._table = mirrored.table
        self._keys = mirrored.keys
        self._images = mirrored.images
        self._key_of = key_of
        self._scan = scan
        self._rows = rows
        self._survey = survey
        self._publisher = publisher
        self._stop = Stop()  # the command ends with its input

    async def tables(self) -> Sequence[str]:
        """Return the name of the table."""
        return [self._table]

    async def describe(self, request: Describe) -> tuple[bytes, Done]:
        """Return the header of the table as it is now."""
        self._check(request.table)
        return self._header(), _done(await self._place(ALL_KEYS))

    async def read(self, request: Read) -> AsyncGenerator[bytes | Done, None]:
        """Yield the table's rows in key order."""
        self._check(request.table, request.at)
        after, until = (None if key is None else self._row_key(key) for key in (request.after, request.until))
        try:
            asked = KeyRange(b"" if after is None else after + b"\0", b"" if until is None else until + b"\0")
        except ValueError as error:
            raise MisconfiguredError(
                "row-keys-reversed", "no key is greater than `after` and at most `until`"
            ) from error
        place = await self._place(ALL_KEYS)
        yield self._header()
        number = 0
        for keys in self._keys:
            left = common(keys, asked)
            while left is not None:
                made, read_to = await self._page(left, place)
                number += len(made)
                for batch in _batches(made):
                    yield batch
                left = None if read_to is None else behind(left, read_to)
        yield _done(place, number)

    async def read_keys(self, request: ReadKeys) -> AsyncGenerator[bytes | Done, None]:
        """Yield the rows that there are under some keys."""
        self._check(request.table, request.at)
        row_keys = [self._row_key(key) for key in request.keys]
        place = await self._place(ALL_KEYS)
        yield self._header()
        made = _present((await self._found(row_keys, place)).values())
        for batch in _batches(made):
            yield batch
        yield _done(place, len(made), len(set(row_keys)) - len(made))

    async def publish(self, request: Publish) -> Done:
        """Publish the rows that there are under some keys, and deletes of the others.

        MisconfiguredError, with all others published, where no mirror can hold some of the rows.
        """
        self._check(request.table)
        row_keys = sorted({self._row_key(key) for key in request.keys})
        async with self._publisher() as publisher:
            place = await self._place_above(request.above)
            found = await self._found(row_keys, place)
            images = [found.get(key) or self._images.row(key, None, place) for key in row_keys]
            by_header: dict[int, list[Made]] = {}
            for one in images:
                if isinstance(one, Made):
                    by_header.setdefault(id(one.header), []).append(one)
            for some in by_header.values():
                changes = [(one.ordering_key, one.change) for one in some]
                await (await publisher.publish(some[0].header, changes))
        refused = [one for one in images if isinstance(one, RefusedChange)]
        if refused:
            raise MisconfiguredError(
                "rows-unfit-for-mirror",
                f"table {self._table}: no mirror can hold {len(refused)} of {len(images)} rows (the others are "
                f"published): {refused[0].change.key}: {refused[0].detail}",
            )
        absent = sum(one.change.op == "DELETE" for one in images)
        return _done(place, len(images) - absent, absent)

    def _check(self, table: str, at: str | None = None) -> None:
        if table != self._table:
            raise MisconfiguredError(
                "not-the-mirrored-table", f"table {table} is not the one that is mirrored, which is {self._table}"
            )
        if at is not None:
            raise MisconfiguredError(
                "bigtable-has-no-past", "Bigtable keeps no earlier state of rows: ask without a time"
            )

    def _row_key(self, key: Key) -> bytes:
        if len(key) != 1 or not isinstance(key[0], str):
            raise MisconfiguredError("row-key-parts", f"a key of table {self._table} has one part, a text")
        return self._key_of(key[0])

    def _header(self) -> bytes:
        return encode_batch(msgspec.structs.replace(self._images.header, origin="snapshot"), [])

    async def _place(self, keys: KeyRange) -> SnapshotPlace:
        """Return under which number may be published what is read of keys from now on."""
        return (await self._place_now(keys))[0]

    async def _place_now(self, keys: KeyRange) -> tuple[SnapshotPlace, bool]:
        """Return that number, and whether the stream is paused: then it stays the same."""
        async for attempt in retrying_async(self._stop, RETRY_BUDGET):
            with attempt:
                survey, run = await self._survey()
        min_version = min_version_under(survey, keys)
        if min_version is None:
            raise MisconfiguredError(
                "stream-not-begun", "the stream has not begun, so no reader knows what is newer: start a reader first"
            )
        return SnapshotPlace(min_version, run, _LATEST, survey.now), survey.paused_since is not None

    async def _place_above(self, above: str) -> SnapshotPlace:
        """Return a number that is higher than what is applied already, once minimums have come so far."""
        before = parse_sequence(above) if above else None
        lower = f"table {self._table}: some rows in BigQuery have a higher version than the stream has reached"
        for _second in range(_SECONDS):
            place, paused = await self._place_now(ALL_KEYS)
            if before is None or parse_sequence(place.sequence) > before:
                return place
            if paused:
                raise MisconfiguredError(
                    "applied-ahead-while-paused", f"{lower}, and it is paused: `resume` it, and ask again"
                )
            await asyncio.sleep(1)
        raise MisconfiguredError(
            "applied-ahead-of-stream", f"{lower}: start a reader if none runs (`status`), and ask again"
        )

    async def _page(self, keys: KeyRange, place: SnapshotPlace) -> tuple[Sequence[Made | RefusedChange], bytes | None]:
        """Return the images of the first rows of a range, and up to which key there are no others (None: its end)."""
        try:
            page = await retried(self._stop, lambda: self._scan.page(keys, _ROWS), RETRY_BUDGET)
        except ReadRefusedError:
            row_key = await self._first_key(keys)
            if row_key is None:
                raise
            return _present((await self._found([row_key], place)).values()), row_key
        return _present(self._images.row(row_key, cells, place) for row_key, cells in page.rows), page.read_to

    async def _found(self, row_keys: Iterable[bytes], place: SnapshotPlace) -> Mapping[bytes, Made | RefusedChange]:
        """Return the images of those of the rows that there are, and are watched; of those too that cannot be read."""
        found: dict[bytes, Made | RefusedChange] = {}
        left = sorted({key for key in row_keys if any(key in keys for keys in self._keys)})
        at_once = _ROWS
        while left:
            asked = left[:at_once]
            try:
                read = await retried(self._stop, partial(self._rows.read, asked), RETRY_BUDGET)
            except ReadRefusedError as error:
                at_once = max(1, len(asked) // 2)
                if len(asked) == 1:
                    found[asked[0]] = await self._unreadable(asked[0], place, error)
                    del left[0]
                continue
            at_once = min(_ROWS, 2 * at_once)
            found |= {key: self._images.row(key, cells, place) for key, cells in read.found.items()}
            rest = sorted(read.left)
            if len(rest) == len(asked):
                raise TransientError(f"table {self._table}: nothing comes of {len(rest)} rows")
            left = rest + left[len(asked) :]
        return found

    async def _unreadable(self, row_key: bytes, place: SnapshotPlace, error: ReadRefusedError) -> RefusedChange:
        """Return what there is to say of a row that alone cannot be read; an error if nothing else can be either."""
        if await self._first_key(KeyRange(row_key, row_key + b"\0")) is None:
            raise TransientError(f"table {self._table}: a row went while it was read: {error}") from error
        return self._images.unreadable_row(row_key, place, f"Bigtable does not read this row: {error}")

    async def _first_key(self, keys: KeyRange) -> bytes | None:
        return await retried(self._stop, lambda: self._scan.first_key(keys), RETRY_BUDGET)


def _present(images: Iterable[Made | RefusedChange]) -> list[Made | RefusedChange]:
    """Return the images of rows that have a cell in a watched family; those too that no mirror can hold."""
    return [one for one in images if one.change.op == "UPSERT"]


def _done(place: SnapshotPlace, rows: int = 0, absent: int = 0) -> Done:
    return Done(format_microseconds(place.read_at), place.sequence, rows, absent)


def _batches(made: Sequence[Made | RefusedChange]) -> Iterator[bytes]:
    """Yield changes in batches of a message's size."""
    for _header, same in groupby(made, key=lambda one: id(one.header)):
        for some in cut(same, lambda one: one.change.size(), 1_000_000):
            yield encode_batch(some[0].header, [one.change for one in some])
