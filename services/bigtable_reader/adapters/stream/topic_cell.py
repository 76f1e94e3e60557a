"""Which topic the readers of a stream publish to: `shape:topic` beside the key ranges.

They share the key ranges, so one that published to another topic would take its share of the changes there, and the
progress that is saved in common would pass over them.
"""

from collections.abc import Awaitable, Callable

from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from shared.contracts.errors import MisconfiguredError, TransientError


async def keep_topic(rows: PartitionRows, topic: str) -> None:
    """Remember the topic of a stream that is known, unless one is; MisconfiguredError if that is another one."""
    kept = await rows.topic()
    if kept is None:
        await rows.write_topic(topic)
        kept = await rows.topic()
    if kept is None:
        raise TransientError(f"the topic of {rows.stream} was not remembered")
    refuse_other_topic(rows, kept, topic)


async def check_topic(rows: PartitionRows, topic: str) -> None:
    """Refuse, with MisconfiguredError, another topic than the one that is remembered, if any is."""
    kept = await rows.topic()
    if kept is not None:
        refuse_other_topic(rows, kept, topic)


async def replace_topic(
    rows: PartitionRows, topic: str, require_no_reader: Callable[[], Awaitable[None]]
) -> str | None:
    """Remember another topic from now on than the one that is, and return that; None, and none, where none is.

    ``require_no_reader`` raises MisconfiguredError while a reader runs. It is called again afterwards: a reader that
    came meanwhile may have found the former topic, which then stays; one that comes later finds this one.
    """
    before = await rows.topic()
    if before is None:
        return None
    await require_no_reader()
    try:
        written = await rows.write_topic(topic, before)
    except TransientError:
        written = await rows.topic() == topic
        if not written:
            raise
    if not written:
        raise TransientError(f"the topic of {rows.stream} was changed meanwhile")
    try:
        await require_no_reader()
    except MisconfiguredError:  # it may publish to the former one already
        await rows.write_topic(before, topic)
        raise
    return before


def refuse_other_topic(rows: PartitionRows, kept: str, topic: str) -> None:
    """Raise MisconfiguredError where the readers of a stream publish to another topic, ``kept``."""
    if kept != topic:
        raise MisconfiguredError(
            "bigtable-topic-differs",
            f"the readers of change stream {rows.stream} in partition table {rows.table.name} publish to {kept}, and "
            f"this one would to {topic}: each topic would get a part of the changes. Fix TOPIC (or "
            "PUBSUB_EMULATOR_HOST); give a second pipeline another PARTITION_TABLE; to change the topic of this one, "
            "stop every reader and run `python -m services.bigtable_reader topic` with the new TOPIC",
        )
