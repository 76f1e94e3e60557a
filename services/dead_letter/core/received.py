"""Messages of the dead-letter topic as dead letters: ours, those that Pub/Sub itself forwarded, and any others.

Everything becomes a dead letter. What is not as it should be is named in the detail; nothing of what came is lost by
it.

Source of the attributes of forwarded messages: Pub/Sub, "Dead-letter topics", section "How dead-letter topics work":
CloudPubSubDeadLetterSourceDeliveryCount, -Subscription, -SubscriptionProject, -TopicPublishTime and, of push and export
subscriptions, -DeliveryErrorMessage. They are no attributes of the message that was published, so they are taken off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.dead_letter.core.dead_letters import Arrival
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import PREFIX, DeadLetter, from_message
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import key_text
from shared.contracts.timestamps import Nanoseconds

FORWARDED: Final = "CloudPubSubDeadLetterSource"
"""How the names of the attributes begin that Pub/Sub adds to what it forwards."""

_TEXT_LIMIT: Final = 1024  # bytes; an attribute holds no more, and a text that has as many may have been cut
_LARGEST: Final = (1 << 63) - 1
_ATTRIBUTES: Final = 100  # that a message has at most: some may have been left out
_IDENTITY: Final = re.compile("[0-9a-f]{32}", re.ASCII)
_DIGITS: Final = re.compile("[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the dead-letter subscription, leased."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str
    message_id: str
    published_at: Nanoseconds
    ack_id: str


def to_arrival(message: Received) -> Arrival:
    """Return any message of the dead-letter topic as the dead letter that it is. It never raises.

    The identity is made from the message alone, so a dead letter that comes again, forwarded twice or replayed in vain,
    is the same one.
    """
    if any(name.startswith(PREFIX) for name in message.attributes):
        dead_letter = _ours(message)
    elif any(name.startswith(FORWARDED) for name in message.attributes):
        dead_letter = _forwarded(message)
    else:
        dead_letter = _foreign(message)
    return Arrival(dead_letter=dead_letter, message_id=message.message_id)


def _ours(message: Received) -> DeadLetter:
    """Return a dead letter of ours; one that says something amiss as far as it can be understood."""
    try:
        dead_letter = from_message(message.data, message.attributes)
        _check_numbers(dead_letter)
    except ValueError as error:
        dead_letter = _malformed(message, str(error))
    return _with_its_own_name(dead_letter, message.attributes)


def _check_numbers(dead_letter: DeadLetter) -> None:
    """Refuse what no database holds: its numbers have 64 bits, which end the nanoseconds in 1677 and 2262."""
    if not -_LARGEST <= dead_letter.failed_at <= _LARGEST:
        raise ValueError("a time of failure outside 1677 to 2262")
    if dead_letter.payload_bytes is not None and not 0 <= dead_letter.payload_bytes <= _LARGEST:
        raise ValueError("a size that nothing has")


def _malformed(message: Received, what: str) -> DeadLetter:
    """Return a dead letter of another version, or a broken one: its attributes stay, its reason is derived again."""
    ours = {name[len(PREFIX) :]: value for name, value in message.attributes.items() if name.startswith(PREFIX)}
    size = ours.get("payload_bytes", "")
    text = ours.get("detail", "")
    return DeadLetter(
        data=message.data,
        attributes={name: value for name, value in message.attributes.items() if not name.startswith(PREFIX)},
        ordering_key=ours.get("ordering_key", message.ordering_key),
        reason=Reason.UNEXPLAINED,
        detail=f"a dead letter that this version does not understand: {what}" + (f"; it says: {text}" if text else ""),
        failed_at=message.published_at,
        failed_in=ours.get("failed_in", ""),
        table=ours.get("table", ""),
        key=ours.get("key", ""),
        sequence=ours.get("sequence", ""),
        commit_timestamp=ours.get("commit_timestamp", ""),
        payload_bytes=int(size) if _DIGITS.fullmatch(size) else None,
        identity=ours.get("identity", ""),
    )


def _with_its_own_name(dead_letter: DeadLetter, attributes: Mapping[str, str]) -> DeadLetter:
    """Return a dead letter under the name that is made from it, unless what that was made from may be missing.

    A name that is another dead letter's would make this one an attempt of that, and its bytes would be lost.
    """
    cut = any(len(value.encode()) > _TEXT_LIMIT - 4 for name, value in attributes.items() if name.startswith(PREFIX))
    incomplete = cut or len(attributes) >= _ATTRIBUTES or dead_letter.payload_bytes is not None
    if incomplete and _IDENTITY.fullmatch(dead_letter.identity):
        return dead_letter
    return replace(dead_letter, identity="")


def _forwarded(message: Received) -> DeadLetter:
    deliveries = message.attributes.get(f"{FORWARDED}DeliveryCount", "")
    project = message.attributes.get(f"{FORWARDED}SubscriptionProject", "")
    subscription = message.attributes.get(f"{FORWARDED}Subscription", "") or "of a name that it does not tell"
    times = f"{deliveries} times" if _DIGITS.fullmatch(deliveries) else "too often"
    theirs = {name: value for name, value in message.attributes.items() if not name.startswith(FORWARDED)}
    return _of_a_whole_message(
        replace(message, attributes=theirs),
        Reason.NOT_APPLIED_IN_TIME,
        f"delivered {times} by subscription {subscription}"
        + (f" of project {project}" if project and "/" not in subscription else "")
        + " and never acknowledged: forwarded by its dead-letter policy",
        "pubsub",
    )


def _foreign(message: Received) -> DeadLetter:
    what = (
        "not a dead letter of this pipeline, and not forwarded by Pub/Sub: another program published it to the "
        "dead-letter topic"
    )
    return _of_a_whole_message(message, Reason.UNEXPLAINED, what, "")


def _of_a_whole_message(message: Received, reason: Reason, detail: str, failed_in: str) -> DeadLetter:
    change = _change_in(message.data)
    return DeadLetter(
        data=message.data,
        attributes=message.attributes,
        ordering_key=message.ordering_key,
        reason=reason,
        detail=detail,
        failed_at=message.published_at,
        failed_in=failed_in,
        table=change.get("table", ""),
        key=change.get("key", ""),
        sequence=change.get("sequence", ""),
        commit_timestamp=change.get("commit_timestamp", ""),
    )


def _change_in(data: bytes) -> Mapping[str, str]:
    """Return what a message says of itself, if it is a change batch: its table, and of a single change the rest.

    A single change in the form in which one is cut out of a batch is the same dead letter as when the consumer
    dead-letters it; in any other form it is a whole message, or its name would change with the first replay.
    """
    try:
        batch = decode_batch(data)
        found = {"table": _cut(batch.header.table)}
        if len(batch) == 1 and batch.sequence[0] and batch.cut(0) == data:
            found |= {
                "key": key_text(batch.header.table, batch.header.key_types(), bytes(batch.keys[0])),
                "sequence": _cut(batch.sequence[0]),
                "commit_timestamp": _cut(batch.commit_timestamp[0]),
            }
    except (PoisonRecordError, MisconfiguredError):  # the second: of a newer wire format
        return {}
    return found


def _cut(text: str) -> str:
    return text.encode()[:_TEXT_LIMIT].decode(errors="ignore")
