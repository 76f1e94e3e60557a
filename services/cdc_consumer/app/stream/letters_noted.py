"""Mirrors that lack changes which have become dead letters say so, for whoever asks what is gone from a source."""

from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from services.cdc_consumer.core.schema.destinations import Plan, mirror_name
from services.cdc_consumer.core.stream.poison import Poison
from services.cdc_consumer.ports import NotLabelledError, Tables
from shared.contracts.errors import TransientError
from shared.contracts.row_id import ordered_table
from shared.contracts.timestamps import Nanoseconds, microseconds


def mirrors_of(
    poison: Iterable[Poison], ordering_key: Callable[[int], str], plan: Plan
) -> Mapping[tuple[str, str], Collection[int]]:
    """Return the mirrors of poison records, by name and dataset, and the messages that these came in.

    ``ordering_key`` is that of a message: one that could not be read is of the table that its ordering key names.
    """
    messages: dict[tuple[str, str], set[int]] = {}
    for one in poison:
        table = one.table or ordered_table(ordering_key(one.message))
        mirror = mirror_name(table, plan) if table else None
        if mirror is not None:
            messages.setdefault(mirror, set()).add(one.message)
    return messages


def note_letters(tables: Tables, mirror: tuple[str, str], now: Nanoseconds) -> str:
    """Let a mirror say that changes of its source table have become letters; return why it cannot say so now.

    Empty: it says so, or this identity may not label it, which is logged and holds up no message.
    """
    name, dataset = mirror
    log = structlog.get_logger().bind(table=name)
    try:
        tables.note_letters(name, dataset, microseconds(now))
    except NotLabelledError as error:
        fix = (
            "give this identity the role roles/bigquery.dataEditor on the table; until then a sweep that can ask no "
            "source may delete rows that still exist there: run `sweep` without --execute first"
        )
        log.warning("letters_not_noted", error=str(error), fix=fix)
    except TransientError as error:
        fix = "the messages of these letters come again until it succeeds; if it lasts, check the table in BigQuery"
        log.warning("letters_not_noted", error=str(error), fix=fix)
        return str(error)
    return ""
