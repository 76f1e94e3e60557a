"""A dead letter: a poison record as it came, and why. Its envelope on the dead-letter topic, and its identity.

The message's data are the dead letter's bytes, its attributes are the original's, untouched, and beside them ours,
whose names all begin with ``dead_letter_``. So a replay is an ordinary publish of what is left when ours are taken off.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

PREFIX: Final = "dead_letter_"
PUBSUBS_OWN: Final = "goog"
"""How names of attributes begin that no publisher may set. Source: Pub/Sub, "Quotas and limits", attributes."""
REPLAY_OF: Final = "replay_of"
"""The attribute that a replayed message carries: the identity of the dead letter it was replayed from."""
REPLAY_FORCED: Final = "replay_forced"
"""The attribute of a replayed message whose sender has accepted that it may bring a deleted row back."""

_TEXTS: Final = ("detail", "failed_in", "ordering_key", "table", "key", "sequence", "commit_timestamp")
_ATTRIBUTE_LIMIT: Final = 1024  # Pub/Sub: bytes in an attribute's value
_ATTRIBUTES: Final = 100  # Pub/Sub: attributes on a message
_TAKEN_OFF: Final = (REPLAY_OF, REPLAY_FORCED, "CloudPubSubDeadLetterSource", PUBSUBS_OWN)
_MADE_ON_THE_WAY: Final = (*_TAKEN_OFF, "traceparent")
"""Attributes (by how their names begin) that differ from one delivery of the same message to the next.

Older readers wrote a random `traceparent`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A poison record kept. ``data`` is a whole message, or one change cut out verbatim into a batch of its own.

    ``payload_bytes`` is the size of what could not be kept (a change too large for any message); ``data`` is then
    only the JSON text of its key, and table and sequence say what was meant.
    """

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str
    reason: Reason
    detail: str
    failed_at: Nanoseconds
    failed_in: str
    table: str = ""
    key: str = ""
    sequence: str = ""
    commit_timestamp: str = ""
    payload_bytes: int | None = None
    identity: str = ""
    """Made from the rest unless given: the same name however often the same record fails, replays included."""

    def __post_init__(self) -> None:
        if not self.identity:
            object.__setattr__(self, "identity", _identity(self))


def _identity(dead_letter: DeadLetter) -> str:
    if dead_letter.sequence:
        parts = [
            b"change",
            dead_letter.table.encode(),
            dead_letter.key.encode(),
            dead_letter.sequence.encode(),
            dead_letter.data,
        ]
    else:
        attributes = sorted((k, v) for k, v in dead_letter.attributes.items() if not k.startswith(_MADE_ON_THE_WAY))
        parts = [b"message", dead_letter.data, dead_letter.ordering_key.encode()]
        parts += [text.encode() for pair in attributes for text in pair]
    digest = hashlib.sha256()
    for part in parts:  # lengths before contents, so that no two lists of parts can run into the same bytes
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:32]


def to_attributes(dead_letter: DeadLetter) -> dict[str, str]:
    """Return the attributes of the message that carries a dead letter on the dead-letter topic.

    Attributes of the original whose names begin like ours are left out: they would be read as what we say. So are those
    that Pub/Sub has added to a message of a topic with a schema: it takes none whose name begins like them.
    """
    ours = {
        "identity": dead_letter.identity,
        "reason": dead_letter.reason.value,
        "failed_at": format_timestamp(dead_letter.failed_at),
        **{name: getattr(dead_letter, name) for name in _TEXTS},
    }
    if dead_letter.payload_bytes is not None:
        ours["payload_bytes"] = str(dead_letter.payload_bytes)
    kept = dead_letter.attributes.items()
    theirs = {name: value for name, value in kept if not name.startswith((PREFIX, PUBSUBS_OWN))}
    return theirs | {PREFIX + name: _cut(value) for name, value in ours.items() if value}


def from_message(data: bytes, attributes: Mapping[str, str]) -> DeadLetter:
    """Return the dead letter in a message of the dead-letter topic; ValueError if `to_attributes` did not write it.

    The identity is the one that the writer gave, so that a detail or key cut to Pub/Sub's limit does not change it.
    """
    ours = {name[len(PREFIX) :]: value for name, value in attributes.items() if name.startswith(PREFIX)}
    if not {"reason", "identity", "failed_at"} <= ours.keys():
        raise ValueError("not a dead letter: no reason, identity and failed_at among its attributes")
    payload_bytes = ours.get("payload_bytes")
    return DeadLetter(
        data=data,
        attributes={name: value for name, value in attributes.items() if not name.startswith(PREFIX)},
        reason=Reason(ours["reason"]),
        failed_at=parse_timestamp(ours["failed_at"]),
        **{name: ours.get(name, "") for name in _TEXTS},
        payload_bytes=int(payload_bytes) if payload_bytes is not None else None,
        identity=ours["identity"],
    )


def replayed_attributes(dead_letter: DeadLetter, *, forced: bool) -> dict[str, str]:
    """Return the attributes of the message that replays a dead letter: those that it came with, and whose replay it is.

    Marks of an earlier replay, and what Pub/Sub itself has added, are taken off. ValueError where a foreign message has
    so many attributes that there is no room for ours: it would lose some of its own.
    """
    added = {REPLAY_OF: dead_letter.identity} | ({REPLAY_FORCED: "true"} if forced else {})
    kept = {name: value for name, value in dead_letter.attributes.items() if not name.startswith(_TAKEN_OFF)}
    if len(kept) + len(added) > _ATTRIBUTES:
        raise ValueError(
            f"it has {len(kept)} attributes, a message holds {_ATTRIBUTES}, and a replay adds {' and '.join(added)}"
        )
    return kept | added


def _cut(text: str) -> str:
    return text.encode()[:_ATTRIBUTE_LIMIT].decode(errors="ignore")
