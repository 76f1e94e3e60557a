"""A dead letter's payload to be inspected: its structure always, the values of its rows only for who asks for them.

Masked, a string is shown by its length, a number by its digits; NULLs, names of columns, and keys of JSON objects are
shown. Shown as they are, too: the header, the sequence, where in its transaction a change was, and the primary key, for
it is the name by which rows are spoken of, in filters, in the trail and at the source.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from services.dead_letter.core.groups import normalised
from services.dead_letter.core.rows import batch_of
from shared.contracts.change_batch import ChangeBatch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason

_OURS: Final = frozenset(
    {"source", "table", "change_count", "format", "first_commit_timestamp", "last_commit_timestamp", "traceparent"}
)
"""Attributes without a value of a row: those that readers write, or did (`traceparent`)."""
_PLATFORM: Final = ("CloudPubSubDeadLetterSource", "replay_")
_MOST_CHANGES: Final = 20
_MOST_ELEMENTS: Final = 20
_DEEPEST: Final = 40
_QUOTING: Final = frozenset({Reason.REFUSED_BY_BIGQUERY, Reason.UNEXPLAINED})
"""Reasons whose detail is in others' words, which may quote a value."""


def payload(dead_letter: DeadLetter, *, values: bool) -> Mapping[str, object]:
    """Return what a dead letter's bytes hold, as a document: ``kind`` is one of four.

    What is passed on as it came is there as `msgspec.Raw`, so that no digit is lost; of a long batch the first changes.
    """
    if dead_letter.payload_bytes is not None:
        return {"kind": "left_out", "payload_bytes": dead_letter.payload_bytes}
    batch = batch_of(dead_letter)
    if batch is not None:
        shown = [_change(batch, index, values=values) for index in range(min(len(batch), _MOST_CHANGES))]
        return {
            "kind": "change_batch",
            "header": msgspec.Raw(batch.header_text),
            "changes": shown,
            "more_changes": len(batch) - len(shown),
        }
    try:
        dead_letter.data.decode()
        document = msgspec.json.decode(dead_letter.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        document = None
    if isinstance(document, dict | list):
        return {"kind": "json", "document": msgspec.Raw(dead_letter.data) if values else masked(document)}
    kept = {"data": base64.b64encode(dead_letter.data).decode()} if values else {}
    return {"kind": "bytes", "size": len(dead_letter.data), **kept}


def attributes(dead_letter: DeadLetter, *, values: bool) -> Mapping[str, str]:
    """Return a dead letter's attributes; of those that are not Millrace's only the names, unless ``values``."""
    return {
        name: value if values or name in _OURS or name.startswith(_PLATFORM) else str(masked(value))
        for name, value in dead_letter.attributes.items()
    }


def detail(reason: Reason, text: str, *, values: bool = False) -> str:
    """Return why a dead letter failed; what is in others' words without what they quote, and without numbers."""
    return text if values or reason not in _QUOTING else normalised(text)


def masked(value: object, depth: int = 0) -> object:
    """Return the structure of a JSON value: types, lengths, the keys of objects."""
    if depth > _DEEPEST:
        return "<deeper>"
    match value:
        case None:
            return None
        case bool():
            return "<boolean>"
        case str():
            return f"<string of {len(value)}>"
        case int() | float():
            return f"<number of {sum(character.isdigit() for character in str(value))} digits>"
        case dict():
            return {str(key): masked(each, depth + 1) for key, each in value.items()}
        case list():
            return _elements(value, depth)
        case _:
            return "<value>"


def _elements(values: Sequence[object], depth: int) -> Sequence[object]:
    shown = [masked(each, depth + 1) for each in values[:_MOST_ELEMENTS]]
    return shown if len(values) <= _MOST_ELEMENTS else [*shown, f"<{len(values) - _MOST_ELEMENTS} more>"]


def _change(batch: ChangeBatch, index: int, *, values: bool) -> Mapping[str, object]:
    return {
        "op": batch.op[index],
        "mod_type": batch.mod_type[index],
        "sequence": batch.sequence[index],
        "commit_timestamp": batch.commit_timestamp[index],
        "place": batch.place[index],
        "key": batch.keys[index],
        "row": _text(batch.rows[index], values=values),
        "old": _text(batch.old[index], values=values),
    }


def _text(text: msgspec.Raw, *, values: bool) -> object:
    if values:
        return text
    try:
        return masked(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return f"<{len(bytes(text))} bytes>"
