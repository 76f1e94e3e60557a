"""Mirrors that lack changes which have become dead letters say so, for whoever asks what is gone from a source."""

from collections.abc import Callable, Iterable, Sequence

import structlog

from services.cdc_consumer.core.destinations import Plan, mirror_name
from services.cdc_consumer.core.poison import Poison
from services.cdc_consumer.ports import Tables, TableTroubleError
from shared.contracts.row_id import ordered_table
from shared.contracts.timestamps import Nanoseconds, microseconds


def mirrors_of(poison: Iterable[Poison], ordering_key: Callable[[int], str], plan: Plan) -> Sequence[tuple[str, str]]:
    """Return the mirrors of poison records, by name and dataset; ``ordering_key`` is that of a message.

    A message that could not be read is of the table that its ordering key names.
    """
    tables = {one.table or ordered_table(ordering_key(one.message)) for one in poison}
    return sorted({found for table in tables if table and (found := mirror_name(table, plan))})


def note_letters(tables: Tables, mirror: tuple[str, str], now: Nanoseconds) -> None:
    """Let a mirror say that changes of its source table have become letters. TransientError, but for its own trouble.

    That is said in the log, and holds up nothing.
    """
    name, dataset = mirror
    try:
        tables.note_letters(name, dataset, microseconds(now))
    except TableTroubleError as trouble:
        fix = "a sweep that can ask no source may take rows for gone that live: look before one is made"
        structlog.get_logger().warning("letters_not_noted", table=name, error=trouble.shown, fix=fix)
