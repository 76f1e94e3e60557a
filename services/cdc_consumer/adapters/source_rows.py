"""The rows of a source, asked of its reader's command in a child process (`shared.contracts.source_rows`).

The child has a session of its own: a Ctrl-C in the terminal is this process's to act on, and the child ends with its
input. What it logs goes where our log goes.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final

import msgspec

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import (
    Answer,
    Batch,
    Describe,
    Done,
    Failed,
    Key,
    ListTables,
    Publish,
    Read,
    ReadKeys,
    Request,
    Tables,
    decode_answer,
    encode_line,
)
from shared.runtime.stop import Stop

_MOMENT: Final = 5.0
"""Seconds that a child has to end by itself."""
_PYTHON: Final = frozenset({"python", "python3"})


class SourceProcess:
    """A source that answers, one request at a time."""

    def __init__(self, child: "subprocess.Popen[bytes]", command: str, stop: Stop) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child = child
        self._requests: IO[bytes] = child.stdin
        self._answers: IO[bytes] = child.stdout
        self._command = command
        self._stop = stop
        self._answering = False

    def tables(self) -> Sequence[str]:
        """Return the names of the tables that are mirrored."""
        return self.listed().names

    def listed(self) -> Tables:
        """Return the same, with how long their change stream retains its records."""
        listed = Tables(())
        for answer in self._asked(ListTables()):
            match answer:
                case Tables():
                    listed = answer
                case Done():
                    return listed
                case Batch():
                    raise self._nonsense("a change batch where table names were asked for")
        raise AssertionError("an answer ends with Done")

    def describe(self, table: str) -> tuple[bytes, Done]:
        """Return a change batch without changes, and the time it is of."""
        batches, done = self._whole(Describe(table))
        return b"".join(batches), done

    def read(
        self, table: str, at: str | None = None, *, after: Key | None = None, until: Key | None = None
    ) -> Iterator[bytes | Done]:
        """Yield the change batches of a table's rows in key order, and at last what was read at which time.

        What is not taken of it is read past when something else is asked.
        """
        return self._batches(Read(table, at, after, until))

    def read_keys(self, table: str, keys: Sequence[Key]) -> tuple[Sequence[bytes], Done]:
        """Return the change batches of the rows that there are under some keys now."""
        return self._whole(ReadKeys(table, tuple(keys)))

    def publish(self, table: str, keys: Sequence[Key], above: str = "") -> Done:
        """Let the topic say what is true of some keys, by a sequence above another; return once it has it."""
        return self._whole(Publish(table, tuple(keys), above))[1]

    def _whole(self, request: Request) -> tuple[Sequence[bytes], Done]:
        """Return the change batches that a request is answered, and what ends them."""
        *batches, done = self._batches(request)
        assert isinstance(done, Done), "an answer ends with Done"
        return [batch for batch in batches if isinstance(batch, bytes)], done

    def _batches(self, request: Request) -> Iterator[bytes | Done]:
        for answer in self._asked(request):
            match answer:
                case Batch():
                    yield bytes(answer.batch)
                case Done():
                    yield answer
                case Tables():
                    raise self._nonsense("table names where rows were asked for")

    def _asked(self, request: Request) -> Iterator[Tables | Batch | Done]:
        """Yield what a request is answered; TransientError or MisconfiguredError where it is not."""
        while self._answering:  # the request before was abandoned: the rest of its answer is no part of this one
            self._answering = not isinstance(self._next(), Done | Failed)
        self._answering = True
        with suppress(BrokenPipeError):  # it has gone: what it answers says so
            self._requests.write(encode_line(request))
            self._requests.flush()
        while True:
            answer = self._next()
            self._answering = not isinstance(answer, Done | Failed)
            match answer:
                case Failed(error=error, transient=True):
                    raise TransientError(f"the source: {error}")
                case Failed(error=error):
                    raise MisconfiguredError.from_text(f"the source: {error}", "source-refused")
                case Tables() | Batch() | Done():
                    yield answer
                    if isinstance(answer, Done):
                        return

    def _next(self) -> Answer:
        line = self._answers.readline()
        if self._stop.requested:
            raise TransientError("asked to stop before the source had answered")
        if not line.endswith(b"\n"):
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_MOMENT)
            raise MisconfiguredError(
                "source-command-ended",
                f"the source's command ended (exit code {self._child.poll()}) before it had answered; its own error "
                f"is above: {self._command}. Is that the reader of this source, with its settings? Name another one by "
                '--source or SOURCE_ROWS, for Bigtable: --source "python -m services.bigtable_reader rows"',
            )
        try:
            return decode_answer(line)
        except msgspec.MsgspecError as error:
            raise self._nonsense(str(error)) from error

    def _nonsense(self, what: str) -> MisconfiguredError:
        return MisconfiguredError(
            "source-command-not-understood",
            f"the source's command answers what this version does not understand ({what}): is it the reader's command "
            f"`rows`, of the same version? {self._command}",
        )


@contextmanager
def opened_source(command: str, environ: Mapping[str, str], stop: Stop) -> Iterator[SourceProcess]:
    """Run a source's command for the block; ``python`` in it is the interpreter that runs this.

    MisconfiguredError where there is no such command. A stop ends the child at once.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MisconfiguredError("source-command-malformed", f"not a command line ({error}): {command}") from error
    if not words:
        raise MisconfiguredError(
            "source-command-empty", "the source's command is empty: set SOURCE_ROWS, or give --source"
        )
    if words[0] in _PYTHON:
        words[0] = sys.executable
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environ), start_new_session=True
        )
    except OSError as error:
        raise MisconfiguredError(
            "source-command-not-run",
            f"the source's command cannot be run ({error}): {command}. Fix SOURCE_ROWS, or --source",
        ) from error
    try:
        with stop.calling(child.terminate):
            yield SourceProcess(child, command, stop)
    finally:
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a child: by its input, by a signal where that does not help, and for certain in the end."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(OSError):
        child.stdin.close()
    child.stdout.close()  # what it still writes breaks its pipe
    for insist in (child.terminate, child.kill, None):
        try:
            child.wait(_MOMENT)
        except subprocess.TimeoutExpired:
            if insist is not None:
                insist()
        else:
            return
    raise AssertionError("a killed child ends")
