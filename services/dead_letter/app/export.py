"""Dead letters as JSON lines in replay order, as the command writes and the API streams them, masked by one rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from services.dead_letter.core.dead_letters import Action
from services.dead_letter.core.documents import export_document
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore
from shared.runtime.clock import Clock
from shared.runtime.portions import cut

_AT_A_TIME: Final = 500
_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Lines:
    """Some dead letters, a line each."""

    dead_letters: int
    text: bytes


def exported(
    store: DeadLetterStore, selection: Selection, *, values: bool, who: str | None, clock: Clock
) -> Iterator[Lines]:
    """Yield the dead letters of a selection, some at a time; memory stays bounded.

    With ``values`` their very bytes are shown, and who asks is in each dead letter's trail before it is yielded.
    """
    for some in cut(store.in_replay_order(selection), lambda one: one.size, _BYTES, _AT_A_TIME):
        if values:
            assert who is not None, "values need a name"
            store.note([one.id for one in some], Action.EXPORTED, who, clock.now(), "with values")
        text = b"".join(msgspec.json.encode(export_document(one, values=values)) + b"\n" for one in some)
        yield Lines(len(some), text)
