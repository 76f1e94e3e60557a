"""Dead letters for tests: one change of a row of `planes` each, as the consumer cuts them out."""

import json
from dataclasses import replace
from typing import Any

from services.dead_letter.core.dead_letters import GroupId, State, StoredDeadLetter
from shared.contracts.change_batch import Change, Header, decode_batch, encode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from tests.builders import COMMITTED, a_change, a_header
from tests.fakes.dead_letter_store import stored_of

HOUR = 3_600 * 1_000_000_000
NOW = Nanoseconds(parse_timestamp(COMMITTED) + HOUR)
BAD = Reason.VALUE_DOES_NOT_FIT


def at(instant: int) -> str:
    """Return the text of an instant."""
    return format_timestamp(Nanoseconds(instant))


def a_dead_letter(change: Change | None = None, header: Header | None = None, **more: Any) -> DeadLetter:
    """Return a dead letter of one change."""
    change, header = change or a_change(), header or a_header()
    data = decode_batch(encode_batch(header, [change])).cut(0)
    dead_letter = DeadLetter(
        data=data,
        attributes={"source": header.source, "table": header.table, "change_count": "1"},
        ordering_key=f"{header.table}/3",
        reason=BAD,
        detail="column seats of type INT64: not a whole number",
        failed_at=NOW,
        failed_in="cdc_consumer",
        table=header.table,
        key=json.dumps([int(json.loads(change.key)["id"])], separators=(",", ":")),
        sequence=change.sequence,
        commit_timestamp=change.commit_timestamp,
    )
    return replace(dead_letter, **more, identity="") if more else dead_letter


def junk(data: bytes = b"\x00 junk", **more: Any) -> DeadLetter:
    """Return a dead letter of a message that cannot be read."""
    dead_letter = DeadLetter(
        data=data,
        attributes={"who": "another publisher"},
        ordering_key="",
        reason=Reason.UNDECODABLE,
        detail="invalid character",
        failed_at=NOW,
        failed_in="cdc_consumer",
    )
    return replace(dead_letter, **more, identity="") if more else dead_letter


def stored(dead_letter: DeadLetter | None = None, **more: Any) -> StoredDeadLetter:
    """Return a dead letter as a store holds it: open, failed once, never replayed."""
    dead_letter = dead_letter or a_dead_letter()
    fields: dict[str, Any] = {
        "state": State.OPEN,
        "group": GroupId("g"),
        "attempts": 1,
        "replays": 0,
        "first_failed_at": dead_letter.failed_at,
        "last_failed_at": dead_letter.failed_at,
        "arrived_at": dead_letter.failed_at,
    }
    return stored_of(dead_letter, **fields | more)


ONE = a_dead_letter(a_change(1, sequence=10, name="Ada", seats=3))
TWO = a_dead_letter(
    a_change(2, sequence=20), a_header("pilots"), reason=Reason.SCHEMA_CONFLICT, failed_at=ONE.failed_at - HOUR
)
JUNK = junk(failed_at=ONE.failed_at - 3 * HOUR)
