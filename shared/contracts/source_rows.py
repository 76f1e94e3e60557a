"""What a consumer's command asks of a source's rows: a command of the source's reader, run as a child process.

The child reads requests from its standard input and writes answers to its standard output, one JSON document a line;
its log goes to standard error. It answers one request after the other, and ends when its input does. A request is
answered by any number of `Batch` (or one `Tables`), and then by one `Done` or `Failed`; after `Failed` the next request
is answered as ever. Nothing else is ever written there.

A batch is what the topic would carry: a change batch of origin ``snapshot``, parsed by the very code that parses
messages. So the client knows nothing of the source, and *equal* is what the type map makes of it.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

FORMAT: Final = 1
"""The newest form of requests and answers that this version speaks."""

Key: TypeAlias = tuple[str | bool | int | float | None, ...]
"""The values of a row's key, in key order, as a change batch writes them: an INT64 is a text, BYTES are base64."""


class _Message(msgspec.Struct, frozen=True, tag_field="is", omit_defaults=True):
    """A line."""


class ListTables(_Message, frozen=True, tag="list_tables"):
    """Which tables are mirrored? Answered by `Tables`."""

    format: int = FORMAT


class Describe(_Message, frozen=True, tag="describe"):
    """What is a table like now? Answered by one batch without changes: its header is what counts."""

    table: str


class Read(_Message, frozen=True, tag="read"):
    """All rows of a table as they are now (or were ``at`` a time), or those behind ``after`` up to and with ``until``.

    Answered by batches in key order: first one without changes, then the rows as upserts. ``at`` is RFC 3339; a source
    that does not remember how rows were answers `Failed`. Where the time is forgotten while they are read, the rest
    comes as it is then: the sequences say so.
    """

    table: str
    at: str | None = None
    after: Key | None = None
    until: Key | None = None


class ReadKeys(_Message, frozen=True, tag="look"):
    """The rows that have these keys now: as `Read`, in any order. What does not come does not exist.

    Each row that comes is that of one of the keys. Where one of them cannot be looked up the answer is `Failed`.
    """

    table: str
    keys: tuple[Key, ...]
    at: str | None = None


class Publish(_Message, frozen=True, tag="publish"):
    """Let the topic say what is true of these keys now, and wait until it has it; answered by no batch.

    Of a key that has a row, an upsert of origin ``snapshot``; of one that has none, a delete: the source is asked, at
    one time, and the client is not believed. Both carry the sequence of a snapshot row, so any later change
    wins over them. It is higher than ``above`` (what is applied already); else nothing is published, but `Failed`. That
    is the answer, too, where no mirror can hold some of the rows: then the others may have been published.
    """

    table: str
    keys: tuple[Key, ...]
    above: str = ""


class Tables(_Message, frozen=True, tag="tables"):
    """The names of tables, as change batches name them, and for how many seconds their change stream retains records.

    0: that is not known.
    """

    names: tuple[str, ...]
    format: int = FORMAT
    retention: float = 0


class Batch(_Message, frozen=True, tag="batch"):
    """A change batch, byte for byte but for line breaks, which JSON has between its tokens only."""

    batch: msgspec.Raw


class Done(_Message, frozen=True, tag="done"):
    """A request has been answered.

    ``at``: the time (RFC 3339, the source's clock) that was read at, the earliest if there were several. ``sequence``:
    the change sequence number of such a row: a change that the answer does not show has a higher one. ``rows``: how
    many rows were read, or published; ``absent``: how many of the keys asked for have none (deletes were published).
    """

    at: str
    sequence: str
    rows: int = 0
    absent: int = 0


class Failed(_Message, frozen=True, tag="failed"):
    """A request cannot be answered: not now (``transient``, the same may work later), or not until a person acts."""

    error: str
    transient: bool = False


Request: TypeAlias = ListTables | Describe | Read | ReadKeys | Publish
Answer: TypeAlias = Tables | Batch | Done | Failed

_encoder: Final = msgspec.json.Encoder()
_requests: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
_answers: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


def encode_line(message: Request | Answer) -> bytes:
    """Return a line, with its line break."""
    return _encoder.encode(message) + b"\n"


def batch_line(batch: bytes) -> bytes:
    """Return the line that carries a change batch."""
    return encode_line(Batch(msgspec.Raw(batch.replace(b"\n", b" "))))


def decode_request(line: bytes) -> Request:
    """Return the request in a line; ValueError (msgspec's) if there is none that this version knows."""
    return _requests.decode(line)


def decode_answer(line: bytes) -> Answer:
    """Return the answer in a line; ValueError (msgspec's) if there is none that this version knows."""
    return _answers.decode(line)


def keys_of(rows: Sequence[Sequence[object]]) -> tuple[Key, ...]:
    """Return keys as requests carry them; ValueError (msgspec's) where a value is none that a key can have."""
    return msgspec.convert(rows, tuple[Key, ...])
