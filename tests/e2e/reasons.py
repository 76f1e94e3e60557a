"""A scenario for each reason there is: how the real consumer comes to it, and its fix by a person."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from shared.contracts.change_batch import Change, Column, encode_batch
from shared.contracts.reasons import Reason
from tests.builders import PLANE_COLUMNS, a_header, a_message
from tests.e2e.mending import change, committed_at

Fix = Literal["edited", "table altered", "tables file", "forced", "fixed elsewhere", "never"]
"""What lets a dead letter be applied: an edit; a statement in BigQuery; a line in the tables file and a restart; a
person who knows that no deleted row comes back; nothing that concerns it, since BigQuery or the consumer was away.
Never: it says nothing that could be applied, so what was meant is written once more at the source, and it is discarded.
"""
GOOD: Final = 1
"""The row of each table that nothing is wrong with."""
BAD: Final = 2
_UNREADABLE: Final = "it is a whole message that cannot be read"
_DAYS: Final = 86_400 * 1_000_000_000
_WIDE: Final = [f"wide_{number}" for number in range(2_000)]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Messages that lead to one dead letter of a reason, which is of a table that has the reason's name."""

    fix: Fix
    detail: str
    """What the dead letter's detail says, in part."""
    messages: Sequence[Mapping[str, Any]]
    first: Sequence[int] = ()
    """The rows of its table that come at once: nothing is wrong with them."""
    fixed: Mapping[int, int] = field(default_factory=dict)
    """The seats of the rows that come by the fix; their names are those of `named`."""
    edit: Sequence[str] = ()
    """The options of `edit`."""
    before: str = ""
    """A statement run in BigQuery before; ``{table}`` is the table."""
    statement: str = ""
    """The statement that fixes it."""
    tables_file: str = ""
    deliveries: int = 0
    """How often its last message has been delivered before the consumer starts."""
    fault: Mapping[str, Any] | None = None
    """What BigQuery does until it is fixed."""
    rewritten: Sequence[Mapping[str, Any]] = ()
    """What the source publishes where the dead letter itself can never be applied."""
    uneditable: str = ""
    """What `edit` says where there is nothing to edit; asked of one for each way in which that is."""
    table_unknown: bool = False
    """Whether nothing shows which table the dead letter is of."""
    source_table: str = ""
    """Where it is not the reason's name."""


def named(reason: Reason, row: int) -> str:
    """Return the name that a row has in a table."""
    return f"{reason.value} {row}"


def a_row(reason: Reason, row: int, sequence: int = 1, seats: object = "1", **more: object) -> Change:
    """Return a change of a row of a reason's table."""
    return change(row, sequence, name=named(reason, row), seats=seats, **more)


def messages(reason: Reason, *changes: Change, **header: Any) -> Mapping[str, Any]:
    """Return a message of a reason's table."""
    return a_message(*changes, header=msgspec.structs.replace(a_header(reason.value), **header))


def columns(*more: tuple[str, str]) -> tuple[Column, ...]:
    """Return the usual columns, and others."""
    return tuple(Column(name, kind) for name, kind in (*PLANE_COLUMNS, *more))


def _unreadable(reason: Reason, detail: str, data: bytes) -> Scenario:
    """Return the scenario of a message that no decoder can read: its source writes the row again."""
    header = a_header(reason.value)
    return Scenario(
        fix="never",
        detail=detail,
        messages=[messages(reason, a_row(reason, GOOD)), a_message(header=header, data=data)],
        first=[GOOD],
        rewritten=[messages(reason, a_row(reason, BAD))],
        uneditable=_UNREADABLE if reason is Reason.UNDECODABLE else "",
        table_unknown=True,
    )


def _batch(reason: Reason) -> bytes:
    return encode_batch(a_header(reason.value), [a_row(reason, BAD)])


def _unequal(data: bytes) -> bytes:
    document = json.loads(data)
    document["sequence"] *= 2
    return json.dumps(document).encode()


def _no_primary_key(reason: Reason) -> Scenario:
    keyless = msgspec.structs.replace(a_row(reason, BAD), key="{}", row='{"id": "2", "name": "n", "seats": "1"}')
    return Scenario(
        fix="never",
        detail="by primary key only",
        messages=[messages(reason, keyless, primary_key=())],
        rewritten=[messages(reason, a_row(reason, GOOD), a_row(reason, BAD))],
    )


def _key_not_representable(reason: Reason) -> Scenario:
    without = msgspec.structs.replace(a_row(reason, BAD), key='{"id": null}')
    return Scenario(
        fix="never",
        detail="NULL, which a BigQuery key cannot hold",
        messages=[messages(reason, a_row(reason, GOOD), without)],
        first=[GOOD],
        rewritten=[messages(reason, a_row(reason, BAD))],
    )


def _bad_change(reason: Reason) -> Scenario:
    partial = msgspec.structs.replace(a_row(reason, BAD), row='{"seats": "7"}')
    return Scenario(
        fix="never",
        detail="an update with the changed columns only",
        messages=[messages(reason, a_row(reason, GOOD)), messages(reason, partial, value_capture_type="NEW_VALUES")],
        first=[GOOD],
        rewritten=[messages(reason, a_row(reason, BAD))],
    )


def _bad_sequence(reason: Reason) -> Scenario:
    unordered = msgspec.structs.replace(a_row(reason, BAD), sequence="soon")
    return Scenario(
        fix="never",
        detail="hexadecimal digits",
        messages=[messages(reason, a_row(reason, GOOD), unordered)],
        first=[GOOD],
        rewritten=[messages(reason, a_row(reason, BAD))],
        uneditable="it has no later revision",
    )


def _too_many_columns(reason: Reason) -> Scenario:
    wide = columns(*((name, "BOOL") for name in _WIDE))
    return Scenario(
        fix="tables file",
        detail="2005 columns",
        messages=[messages(reason, a_row(reason, BAD, wide_7=True), columns=wide)],
        fixed={BAD: 1},
        tables_file=f'[tables."{reason.value}"]\nignored_columns = {json.dumps(_WIDE)}\n',
    )


def _bad_name(reason: Reason) -> Scenario:
    header = a_header("bad name!")
    return Scenario(
        fix="tables file",
        detail="table name",
        messages=[a_message(a_row(reason, BAD), header=header)],
        fixed={BAD: 1},
        tables_file=f'[tables."bad name!"]\nname = "{reason.value}"\n',
        source_table=header.table,
    )


def _unsupported_type(reason: Reason) -> Scenario:
    shaped = columns(("shape", "STRUCT<x FLOAT64>"))
    return Scenario(
        fix="tables file",
        detail="type 'STRUCT<x FLOAT64>' is not",
        messages=[messages(reason, a_row(reason, BAD, shape="round"), columns=shaped)],
        fixed={BAD: 1},
        tables_file=f'[tables."{reason.value}"]\nignored_columns = ["shape"]\n',
    )


def _too_large(reason: Reason) -> Scenario:
    # a zero takes two bytes as JSON, and eight in a row that is appended
    zeros = [0] * 1_300_000
    return Scenario(
        fix="tables file",
        detail="bytes as a row; an append takes",
        messages=[
            messages(
                reason,
                a_row(reason, GOOD, numbers=[1]),
                a_row(reason, BAD, numbers=zeros),
                columns=columns(("numbers", "ARRAY<FLOAT64>")),
            )
        ],
        first=[GOOD],
        fixed={BAD: 1},
        tables_file=f'[tables."{reason.value}"]\nignored_columns = ["numbers"]\n',
    )


def _too_old_to_be_safe(reason: Reason) -> Scenario:
    old = committed_at(a_row(reason, BAD), time.time_ns() - 3 * _DAYS)
    return Scenario(
        fix="forced",
        detail="it could bring a deleted row back",
        messages=[messages(reason, a_row(reason, GOOD)), messages(reason, old, origin="replay")],
        first=[GOOD],
        fixed={BAD: 1},
    )


def _schema_conflict(reason: Reason) -> Scenario:
    return Scenario(
        fix="table altered",
        detail="has the primary key (name), the source has (id)",
        messages=[messages(reason, a_row(reason, BAD))],
        fixed={BAD: 1},
        before="""CREATE TABLE `{table}` (id INT64, name STRING, seats INT64, _millrace_sequence STRING,
            _millrace_commit_timestamp TIMESTAMP, PRIMARY KEY (name) NOT ENFORCED)""",
        statement="DROP TABLE `{table}`",
    )


def _value_does_not_fit(reason: Reason) -> Scenario:
    return Scenario(
        fix="edited",
        detail="column seats of type INT64",
        messages=[messages(reason, a_row(reason, GOOD), a_row(reason, BAD, seats="a dozen"))],
        first=[GOOD],
        fixed={BAD: 12},
        edit=["--set", 'seats="12"'],
    )


def _refused_by_bigquery(reason: Reason) -> Scenario:
    return Scenario(
        fix="fixed elsewhere",
        detail="no such seats",
        messages=[messages(reason, a_row(reason, GOOD), a_row(reason, BAD))],
        first=[GOOD],
        fixed={BAD: 1},
        fault={
            "action": "answer",
            "status": "INVALID_ARGUMENT",
            "message": "no such seats",
            "containing": named(reason, BAD),
        },
    )


def _retries_exhausted(reason: Reason) -> Scenario:
    return Scenario(
        fix="fixed elsewhere",
        detail="append refused, INTERNAL",
        messages=[messages(reason, a_row(reason, GOOD), a_row(reason, BAD))],
        first=[GOOD],
        fixed={BAD: 1},
        deliveries=9,
        fault={"action": "answer", "status": "INTERNAL", "containing": named(reason, BAD)},
    )


def _not_applied_in_time(reason: Reason) -> Scenario:
    return Scenario(
        fix="fixed elsewhere",
        detail="delivered 100 times by subscription",
        messages=[messages(reason, a_row(reason, GOOD), a_row(reason, BAD))],
        fixed={GOOD: 1, BAD: 1},
        deliveries=100,
    )


SCENARIOS: Final[Mapping[Reason, Scenario]] = {
    Reason.UNDECODABLE: _unreadable(Reason.UNDECODABLE, "malformed", b'{"header": nothing'),
    Reason.TRAILING_BYTES: _unreadable(
        Reason.TRAILING_BYTES, "trailing characters", _batch(Reason.TRAILING_BYTES) + b"{}"
    ),
    Reason.UNEQUAL_LISTS: _unreadable(Reason.UNEQUAL_LISTS, "sequence 2", _unequal(_batch(Reason.UNEQUAL_LISTS))),
    Reason.NO_PRIMARY_KEY: _no_primary_key(Reason.NO_PRIMARY_KEY),
    Reason.KEY_NOT_REPRESENTABLE: _key_not_representable(Reason.KEY_NOT_REPRESENTABLE),
    Reason.TOO_MANY_COLUMNS: _too_many_columns(Reason.TOO_MANY_COLUMNS),
    Reason.BAD_NAME: _bad_name(Reason.BAD_NAME),
    Reason.UNSUPPORTED_TYPE: _unsupported_type(Reason.UNSUPPORTED_TYPE),
    Reason.SCHEMA_CONFLICT: _schema_conflict(Reason.SCHEMA_CONFLICT),
    Reason.BAD_CHANGE: _bad_change(Reason.BAD_CHANGE),
    Reason.BAD_SEQUENCE: _bad_sequence(Reason.BAD_SEQUENCE),
    Reason.VALUE_DOES_NOT_FIT: _value_does_not_fit(Reason.VALUE_DOES_NOT_FIT),
    Reason.TOO_LARGE: _too_large(Reason.TOO_LARGE),
    Reason.REFUSED_BY_BIGQUERY: _refused_by_bigquery(Reason.REFUSED_BY_BIGQUERY),
    Reason.TOO_OLD_TO_BE_SAFE: _too_old_to_be_safe(Reason.TOO_OLD_TO_BE_SAFE),
    Reason.RETRIES_EXHAUSTED: _retries_exhausted(Reason.RETRIES_EXHAUSTED),
    Reason.NOT_APPLIED_IN_TIME: _not_applied_in_time(Reason.NOT_APPLIED_IN_TIME),
    Reason.UNEXPLAINED: Scenario(
        fix="never",
        detail="another program published it to the dead-letter topic",
        messages=[],  # it does not come by the consumer
        rewritten=[messages(Reason.UNEXPLAINED, a_row(Reason.UNEXPLAINED, GOOD), a_row(Reason.UNEXPLAINED, BAD))],
        table_unknown=True,
    ),
}


def with_fix(*fixes: Fix) -> Sequence[tuple[Reason, Scenario]]:
    """Return the scenarios with one of these fixes."""
    return [(reason, one) for reason, one in SCENARIOS.items() if one.fix in fixes]
