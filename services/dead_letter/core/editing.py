"""An edit: the row of one change with other values, as a new dead letter of the same row that wins over its original.

Only values of the row's columns change. Table, key, header and place stay, byte for byte, and so do the values that are
not edited; the sequence's revision goes up by one, so that the edit beats its original and nothing else.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from services.dead_letter.core.rows import batch_of
from shared.contracts.change_batch import ChangeBatch, decode_batch
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import PoisonRecordError
from shared.contracts.row_id import key_text

_LONGEST_DIFF: Final = 64 * 1024  # characters
_LARGEST: Final = 9_000_000  # bytes of a change batch: what one may take on its way, with attributes beside it
_NULL: Final = b"null"
_row: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Edit:
    """An edited copy, and what differs from its original as a unified diff of the two rows."""

    copy: DeadLetter
    diff: str


def row_text(dead_letter: DeadLetter) -> str:
    """Return the row of a dead letter, one column a line, to be edited; ValueError with the fix where it has none."""
    return _pretty(bytes(_editable(dead_letter).rows[0]))


def with_columns(dead_letter: DeadLetter, values: Mapping[str, str]) -> str:
    """Return the row of a dead letter with other values, each a JSON text, in some columns; ValueError as `edited`."""
    row = _object(bytes(_editable(dead_letter).rows[0]))
    for name, text in values.items():
        try:
            text.encode().decode()
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ValueError(f'column {name}: not JSON ({error}); a text is written in quotes: {name}="..."') from error
        row[name] = msgspec.Raw(text.encode())
    return msgspec.json.encode(row).decode()


def edited(dead_letter: DeadLetter, row: str) -> Edit:
    """Return the edit that gives a dead letter's change this row, the JSON object of its columns outside the key.

    ValueError that says what can be done where the dead letter cannot be edited, the row is no JSON object, has a
    column that the table has not, or nothing is changed.
    """
    batch = _editable(dead_letter)
    before = bytes(batch.rows[0])
    columns = _object(row.encode(errors="surrogatepass"))
    _check_columns(batch, _object(before), columns)
    after = msgspec.json.encode({name: _compact(value) for name, value in columns.items()})
    diff = _diff(_pretty(before), _pretty(after))
    if not diff:
        raise ValueError("nothing is changed by this edit")
    sequence = _next_revision(batch.sequence[0])
    data = msgspec.structs.replace(batch, sequence=[sequence], rows=[msgspec.Raw(after)]).cut(0)
    if len(data) > _LARGEST:
        raise ValueError(f"the edited change takes {len(data)} bytes, a message takes {_LARGEST}")
    _check_same_row(batch, data)
    header = batch.header
    copy = replace(
        dead_letter,
        data=data,
        table=header.table,
        key=key_text(header.table, header.key_types(), bytes(batch.keys[0])),
        sequence=sequence,
        commit_timestamp=batch.commit_timestamp[0],
        identity="",
    )
    return Edit(copy, diff)


def _editable(dead_letter: DeadLetter) -> ChangeBatch:
    """Return the one change of a dead letter; ValueError, with an alternative, where there is none to edit."""
    if dead_letter.payload_bytes is not None:
        raise ValueError(
            "its bytes could not be kept: write the row once more at its source, and discard this dead letter"
        )
    batch = batch_of(dead_letter)
    if batch is None:
        raise ValueError(
            "it is a whole message that cannot be read: its table and key are unknown, so an edit cannot be checked "
            "against them. Publish it again at its source, and discard this dead letter"
        )
    if len(batch) != 1:
        raise ValueError(
            f"it is a message of {len(batch)} changes: replay it, and each that cannot be applied becomes a dead letter"
        )
    if bytes(batch.rows[0]).strip() == _NULL:
        raise ValueError("its change has no row: replay it, or discard it and write the row once more at its source")
    _object(bytes(batch.rows[0]))
    _next_revision(batch.sequence[0])
    return batch


def _next_revision(sequence: str) -> str:
    try:
        sections = parse_sequence(sequence).sections
        first, second, third, revision = (*sections, 0, 0, 0)[:4]
        return str(four_sections(first, second, third, revision + 1))
    except ValueError as error:
        raise ValueError(
            f"it has no later revision ({error}): write the row once more at its source, and discard this dead letter"
        ) from error


def _check_columns(batch: ChangeBatch, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Refuse columns of the key, which an edit may not change, and names that are no columns: misspelt most likely."""
    key = [name for name in after if name in batch.header.primary_key and name not in before]
    if key:
        raise ValueError(f"column {', '.join(key)} is in the primary key, which an edit may not change")
    known = {column.name for column in batch.header.columns}
    unknown = [name for name in after if name not in known and name not in before]
    if unknown:
        raise ValueError(f"table {batch.header.table} has no column {', '.join(unknown)} in this change")


def _check_same_row(before: ChangeBatch, data: bytes) -> None:
    """Refuse what is no longer a change batch, or one of another table or key: it would be applied elsewhere."""
    try:
        after = decode_batch(data)
    except PoisonRecordError as error:
        raise ValueError(f"the edited change cannot be read: {error.detail}") from error
    if after.header_text != before.header_text or [*map(bytes, after.keys)] != [*map(bytes, before.keys)]:
        raise ValueError("an edit may not change the table or the key")


def _object(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        text.decode()
        return _row.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the row is not a JSON object of columns: {error}") from error


def _compact(value: msgspec.Raw) -> msgspec.Raw:
    """Return a value on one line, its text otherwise as it is: no number goes through a float."""
    return msgspec.Raw(msgspec.json.format(bytes(value), indent=-1))


def _pretty(row: bytes) -> str:
    lines = [
        f"  {msgspec.json.encode(name).decode()}: {bytes(_compact(value)).decode()}"
        for name, value in _object(row).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "before", "after")
    text = "".join(lines)
    return text if len(text) <= _LONGEST_DIFF else text[:_LONGEST_DIFF] + "\n(cut: the rest is left out)\n"
