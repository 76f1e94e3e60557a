"""What no change can be made of: a dead letter, and the rest goes on."""

from collections.abc import Sequence
from typing import Final

import structlog

from services.bigtable_reader.core.refused import Refused
from services.bigtable_reader.ports import Clock, Letters
from shared.contracts.change_batch import encode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.timestamps import Nanoseconds

_MICROSECOND: Final = 1_000  # in nanoseconds


class SettingAside:
    """Keeps dead letters of what was refused: each a change batch of its own, with all that was read."""

    def __init__(self, letters: Letters, clock: Clock) -> None:
        self._letters = letters
        self._clock = clock

    async def keep(self, refused: Sequence[Refused]) -> None:
        """Return when all are confirmed."""
        letters = [self._letter(one) for one in refused]
        for letter in letters:
            structlog.get_logger().warning("change_set_aside", reason=letter.reason.value, table=letter.table)
        await self._letters.keep(letters)

    def _letter(self, refused: Refused) -> DeadLetter:
        header, change = refused.header, refused.change
        return DeadLetter(
            data=encode_batch(header, [change]),
            attributes={
                "source": header.source,
                "table": header.table,
                "change_count": "1",
                "format": str(header.format),
                "first_commit_timestamp": change.commit_timestamp,
                "last_commit_timestamp": change.commit_timestamp,
            },
            ordering_key=refused.ordering_key,
            reason=refused.reason,
            detail=refused.detail,
            failed_at=Nanoseconds(self._clock.now() * _MICROSECOND),
            failed_in="bigtable_reader",
            table=header.table,
            key=change.key,
            sequence=change.sequence,
            commit_timestamp=change.commit_timestamp,
        )
