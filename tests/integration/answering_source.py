"""A source's command for tests: rows of a made-up table, told by the serving loop that readers use.

`python -m tests.integration.answering_source [HOW]`; HOW says what is wrong with it, or `retaining`: that it knows
its retention.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from shared.contracts.change_batch import Change, Column, Header, encode_batch
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Describe, Done, Key, Publish, Read, ReadKeys
from shared.reading.source_rows import answer_requests

HEADER: Final = Header(
    "source", "Things", ("Id",), (Column("Id", "INT64"), Column("Note", "STRING")), origin="snapshot"
)
AT: Final = "2026-01-01T00:00:00Z"
SEQUENCE: Final = "00000000000000AA/0000000000000000/0000000000000000/0000000000000000"
ROWS: Final = {str(number): f"line\nbreak {number}" for number in range(1, 1001)}


class Things:
    """The rows of one table; every other has trouble."""

    async def tables(self) -> Sequence[str]:
        return ["Things"]

    async def describe(self, request: Describe) -> tuple[bytes, Done]:
        _check(request.table)
        return encode_batch(HEADER, []), Done(AT, SEQUENCE)

    async def read(self, request: Read) -> AsyncGenerator[bytes | Done, None]:
        _check(request.table)
        yield encode_batch(HEADER, [])
        wanted = [key for key in ROWS if request.after is None or int(key) > int(str(request.after[0]))]
        for start in range(0, len(wanted), 100):
            yield encode_batch(HEADER, [_change(key) for key in wanted[start : start + 100]])
        yield Done(request.at or AT, SEQUENCE, rows=len(wanted))

    async def read_keys(self, request: ReadKeys) -> AsyncGenerator[bytes | Done, None]:
        found = [_change(str(key)) for (key,) in request.keys if key in ROWS]
        yield encode_batch(HEADER, found)
        yield Done(AT, SEQUENCE, rows=len(found), absent=len(request.keys) - len(found))

    async def publish(self, request: Publish) -> Done:
        there = sum(key in ROWS for (key,) in request.keys)
        return Done(AT, SEQUENCE, rows=there, absent=len(request.keys) - there)


def _change(key: str) -> Change:
    return Change(
        "UPSERT", "SNAPSHOT", SEQUENCE, AT, "{}", json.dumps({"Id": key}), json.dumps({"Note": ROWS[key]}, indent=1)
    )


def _check(table: str) -> None:
    if table == "Busy":
        raise TransientError("too busy")
    if table != "Things":
        raise MisconfiguredError("made-up", f"no table {table}")


def key_of(number: int) -> Key:
    """Return the key of a thing."""
    return (str(number),)


def main(how: str = "") -> int:
    """Answer, or do what is asked for instead."""
    if how == "nonsense":
        sys.stdout.write("Welcome!\n")
        return 0
    if how == "gone":
        return 7
    if how == "silent":
        sys.stdin.buffer.read()
        return 0
    retention = 3 * 86_400 if how == "retaining" else 0
    asyncio.run(answer_requests(Things(), sys.stdin.buffer, sys.stdout.buffer, retention))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
