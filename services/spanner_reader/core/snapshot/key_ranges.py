"""Keys as a person types them: a JSON array of the values of a key, in key order, or of the first few of them."""

from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Any, Final

import msgspec

from services.spanner_reader.core.snapshot.snapshot import KeyText
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.row_id import canonical_key
from shared.contracts.timestamps import parse_timestamp

_decode: Final = msgspec.json.Decoder(list[Any]).decode
_encode: Final = msgspec.json.Encoder().encode
_ORDERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "BOOL": bool,
    "BYTES": b64decode,
    "DATE": str,
    "INT64": int,
    "ENUM": int,
    "STRING": str.encode,
    "TIMESTAMP": parse_timestamp,
}
"""What values of a type are in order by; of others nothing is said, nor of NULL."""


_EXAMPLES: Final = {
    "INT64": '"7"',
    "ENUM": '"7"',
    "BOOL": "true",
    "FLOAT64": "1.5",
    "FLOAT32": "1.5",
    "NUMERIC": '"1.5"',
    "TIMESTAMP": '"2026-11-22T08:00:00Z"',
    "DATE": '"2026-11-22"',
    "BYTES": '"AAEC"',
}
"""A value of each type, as change batches have it."""


_WHOLE: Final = ("INT64", "ENUM")
"""Types that are whole numbers, which Spanner takes as texts."""


def typed_key(text: str, table: str, key: Sequence[tuple[str, str]]) -> KeyText:
    """Return a key as snapshots store it; ``key``: names and GoogleSQL types of its columns, in key order.

    A prefix of a key stands for all rows that begin with it. An INT64 or an ENUM may be a number, too.
    MisconfiguredError, with the types, for what is no key of the table.
    """
    try:
        values = _decode(text)
        if not 0 < len(values) <= len(key):
            raise ValueError(f"of {len(key)} columns, {len(values)} values are given")
        given = key[: len(values)]
        for column, value in zip(given, values, strict=True):
            _check(table, column, value)
    except (msgspec.MsgspecError, ValueError) as error:
        types = ", ".join(f"{name} {kind}" for name, kind in key)
        example = _EXAMPLES.get(key[0][1], '"a"')
        raise MisconfiguredError(
            "not-a-key",
            f"no key of table {table}: it is a JSON array of the values of ({types}), or of the first of them, as "
            f"change batches have them, such as '[{example}]' ({error})",
        ) from error
    wire = [
        str(value) if kind in _WHOLE and value is not None else value
        for (_name, kind), value in zip(given, values, strict=True)
    ]
    return KeyText(_encode(wire).decode())


def _check(table: str, column: tuple[str, str], value: object) -> None:
    name, kind = column
    try:
        canonical_key(table, [column], {name: value})
        if kind == "DATE" and value is not None:
            date.fromisoformat(str(value))  # the canonical key has only its form
    except (PoisonRecordError, ValueError) as error:
        raise ValueError(f"the value of {name} is no {kind}") from error


def check_some_between(
    after: KeyText, until: KeyText, key: Sequence[tuple[str, str]], descending: Collection[str]
) -> None:
    """Raise MisconfiguredError where no key can be behind one and up to the other: they are the wrong way round, say.

    Where their order is not known for certain, nothing is raised.
    """
    low, high = _decode(after), _decode(until)
    for (name, kind), one, other in zip(key, low, high, strict=False):
        if one == other:
            continue
        order = _ORDERS.get(kind)
        if order is None or one is None or other is None:
            return
        try:
            first, second = order(one), order(other)
        except ValueError:  # Spanner knows better
            return
        if (first < second) if name not in descending else (second < first):
            return
        break
    else:
        if len(high) < len(low):  # all that begins so: some of it is behind the longer one
            return
    raise MisconfiguredError(
        "keys-reversed",
        f"no key is between --after {after} and --until {until}: swap them. The key of --after itself is not included",
    )
