"""Which topic the readers of a partition table publish to: a table beside it, of one row.

They share the partitions, so one that published to another topic would take its share of the changes there, and the
progress that is saved in common would pass over them.
"""

from typing import Final, Literal

from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.spanner.connection import Row, SpannerDatabaseClient, Statement
from services.spanner_reader.adapters.spanner.dialects import partition_sql
from services.spanner_reader.adapters.spanner.mutations import writes
from shared.contracts.errors import MisconfiguredError

_ONLY_ROW: Final = "1"


def refuse_other_topic(database: SpannerDatabaseClient, partition_table: str, kept: str | None, topic: str) -> None:
    """Raise MisconfiguredError where the readers of a partition table publish to another topic, ``kept``."""
    if kept is not None and kept != topic:
        raise MisconfiguredError(
            "topic-differs",
            f"the readers of partition table {partition_table} in {database.name} publish to {kept}, "
            f"and this one would to {topic}: each topic would get a part of the changes. Fix TOPIC (or "
            "PUBSUB_EMULATOR_HOST); give a second pipeline another PARTITION_TABLE; to change the topic of this "
            "one, stop every reader and run `python -m services.spanner_reader topic` with the new TOPIC",
        )


class SpannerTopicStore:
    """The table of the topic that belongs to a partition table, which makes it."""

    def __init__(self, database: SpannerDatabaseClient, partition_table: str) -> None:
        self._database = database
        self._partition_table = partition_table

    async def check(self, topic: str) -> None:
        """Refuse, with MisconfiguredError, another topic than the one that is remembered, if any is."""
        self._same(topic, await self._database.query(self._asked))

    async def keep(self, topic: str) -> None:
        """Remember a topic where none is; refuse another one than the one that is."""

        def decide(rows: list[Row]) -> tuple[None, list[Mutation]]:
            return None, [] if self._same(topic, rows) else self._write("insert", topic)

        await self._database.read_then_write(self._asked, decide)

    async def replace(self, topic: str) -> str | None:
        """Remember another topic from now on than the one that is, and return that; None, and none, where none is.

        MisconfiguredError while anybody reads.
        """

        def decide(rows: list[Row]) -> tuple[str | None, list[Mutation]]:
            ((before, readers),) = rows
            if readers:
                raise MisconfiguredError(
                    "readers-still-there",
                    f"{len(readers)} readers still run ({', '.join(sorted(map(str, readers)))}): stop all of them "
                    "first. One that died counts until its lease ends",
                )
            return before, [] if before is None else self._write("insert_or_update", topic)

        return await self._database.read_then_write(self._asked, decide)

    @property
    def _asked(self) -> Statement:
        return Statement(partition_sql(self._database.dialect, self._partition_table)["topic"])

    def _same(self, topic: str, rows: list[Row]) -> bool:
        ((kept, _readers),) = rows
        refuse_other_topic(self._database, self._partition_table, kept, topic)
        return kept is not None

    def _write(self, how: Literal["insert", "insert_or_update"], topic: str) -> list[Mutation]:
        return writes(how, f"{self._partition_table}_topic", ("only_row", "topic"), [[_ONLY_ROW, topic]])
