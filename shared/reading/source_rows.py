"""How a reader answers what is asked of its source's rows (`shared.contracts.source_rows`): lines in, lines out.

The two readers differ in what they answer, never in how: a request at a time, and nothing but answers on the output.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import BinaryIO, Protocol

import msgspec

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import (
    Answer,
    Describe,
    Done,
    Failed,
    ListTables,
    Publish,
    Read,
    ReadKeys,
    Request,
    Tables,
    batch_line,
    decode_request,
    encode_line,
)


class SourceRows(Protocol):
    """The rows of a source, as its reader would publish them.

    Each method raises TransientError or MisconfiguredError where the request cannot be answered; the generators yield
    change batches as bytes, and then, last of all, what there is to say of them.
    """

    async def tables(self) -> Sequence[str]:
        """Return the names of the tables that are mirrored."""

    async def describe(self, request: Describe) -> tuple[bytes, Done]:
        """Return a batch without changes."""

    def read(self, request: Read) -> AsyncGenerator[bytes | Done, None]:
        """Yield a batch without changes, the rows in key order, and `Done`."""

    def read_keys(self, request: ReadKeys) -> AsyncGenerator[bytes | Done, None]:
        """Yield a batch without changes, the rows that there are, and `Done`."""

    async def publish(self, request: Publish) -> Done:
        """Publish what is true of some keys; return once Pub/Sub has it."""


async def answer_requests(source: SourceRows, lines: BinaryIO, out: BinaryIO, retention: float = 0) -> None:
    """Answer request after request until there is none left, or the client no longer takes answers.

    ``retention``: seconds for which the change stream retains its records; 0 if that is not known.
    """
    try:
        while line := await asyncio.to_thread(lines.readline):
            await _answer(source, line, out, retention)
    except BrokenPipeError:  # the client has gone
        return


async def _answer(source: SourceRows, line: bytes, out: BinaryIO, retention: float) -> None:
    try:
        request = decode_request(line)
    except msgspec.MsgspecError as error:
        await _write_answer(out, Failed(f"no request that this version knows: {error}; upgrade the reader first"))
        return
    try:
        await _answered(source, request, out, retention)
    except TransientError as error:
        await _write_answer(out, Failed(str(error), transient=True))
    except MisconfiguredError as error:
        await _write_answer(out, Failed(str(error)))


async def _answered(source: SourceRows, request: Request, out: BinaryIO, retention: float) -> None:
    match request:
        case ListTables():
            await _write_answer(out, Tables(tuple(await source.tables()), retention=retention))
            await _write_answer(out, Done("", ""))
        case Describe():
            batch, done = await source.describe(request)
            await _write(out, batch_line(batch))
            await _write_answer(out, done)
        case Read():
            await _pass_on(source.read(request), out)
        case ReadKeys():
            await _pass_on(source.read_keys(request), out)
        case Publish():
            await _write_answer(out, await source.publish(request))


async def _pass_on(answers: AsyncGenerator[bytes | Done, None], out: BinaryIO) -> None:
    async with aclosing(answers) as each:
        async for answer in each:
            await _write(out, encode_line(answer) if isinstance(answer, Done) else batch_line(answer))


async def _write_answer(out: BinaryIO, answer: Answer) -> None:
    await _write(out, encode_line(answer))


async def _write(out: BinaryIO, line: bytes) -> None:
    # In a thread: who asked may take its time, and the connections of this process have to be served meanwhile.
    await asyncio.to_thread(_write_now, out, line)


def _write_now(out: BinaryIO, line: bytes) -> None:
    out.write(line)
    out.flush()
