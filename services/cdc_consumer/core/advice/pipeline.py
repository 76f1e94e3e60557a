"""Advice on the pipeline: throughput against BigQuery's quotas, outages of the consumer, Bigtable's storage.

Sources: BigQuery, "Quotas and limits", section "Storage Write API", and "Introduction to the Storage Write API",
section "Calculate throughput"; "Storage Write API best practices", section "Connection pool management"; Bigtable,
"Change streams overview", section "Storage".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.cdc_consumer.core.advice.prices import FREE_WRITES, GIB, TIB, Prices

_MULTI_REGIONS: Final = ("us", "eu")
_DAY: Final = timedelta(days=1)
_MONTH: Final = timedelta(days=30)
OUTAGES: Final = (timedelta(hours=1), _DAY, timedelta(days=7))
RECORD_OVERHEAD: Final = 1.5
"""A day's change records of Bigtable take about so many times the space of the data that is written that day."""
MULTIPLEXED_ABOVE: Final = 20
"""Connections, above which Google recommends multiplexing, which its Java and Go clients have, and Python's has not."""
_PER_CONNECTION: Final = (1_000_000, 10_000_000)
"""Bytes a second: at least, and often more than."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """BigQuery's defaults for a project in a location: connections at a time, and bytes appended a second."""

    location: str
    connections: int
    bytes_per_second: int


def quotas(location: str) -> Quotas:
    """Return the quotas of a multi-region, or of a region."""
    if location.lower() in _MULTI_REGIONS:
        return Quotas(location, 10_000, 3_000_000_000)
    return Quotas(location, 1_000, 300_000_000)


def quotas_of(locations: Sequence[str]) -> Sequence[Quotas]:
    """Return the quotas of some locations; of all that there are where none is known."""
    return [quotas(one) for one in locations or (*map(str.upper, _MULTI_REGIONS), "any other region")]


@dataclass(frozen=True, slots=True)
class PipelineAdvice:
    """What one consumer writes, to however many regions.

    ``needed``: how many connections a throughput takes, at best and at worst. Costs are dollars for 30 days.
    """

    connections: int | None
    bytes_per_second: float | None
    needed: tuple[int, int] | None
    pubsub_cost: float | None
    write_cost: float | None


def advise_on_pipeline(connections: int | None, bytes_per_second: float | None, prices: Prices) -> PipelineAdvice:
    """Return what a throughput, measured or expected, means."""
    if bytes_per_second is None:
        return PipelineAdvice(connections, None, None, None, None)
    monthly = bytes_per_second * _MONTH.total_seconds()
    slow, fast = _PER_CONNECTION
    return PipelineAdvice(
        connections,
        bytes_per_second,
        (math.ceil(bytes_per_second / fast), math.ceil(bytes_per_second / slow)),
        2 * monthly / TIB * prices.pubsub,  # published, and delivered to the consumer
        max(0.0, monthly - FREE_WRITES) / GIB * prices.write,
    )


@dataclass(frozen=True, slots=True)
class OutageCost:
    """What it means that the consumer is down for a while. None where the throughput is not known.

    ``lost``: whether messages are lost, the readers going on; ``lost_at_source``: the same if they are down, too.
    """

    length: timedelta
    backlog: int | None
    """Bytes that wait in Pub/Sub."""
    storage_cost: float | None
    """Dollars: of messages that have waited for more than a day."""
    catch_up: timedelta | None
    """None also where changes come faster than they are applied."""
    lost: bool
    lost_at_source: bool


def outage(
    length: timedelta,
    *,
    kept: timedelta,
    source_kept: timedelta,
    bytes_per_second: float | None,
    drained_per_second: float | None,
    prices: Prices,
) -> OutageCost:
    """Return what an outage costs. ``kept``: by the subscription; ``drained_per_second``: bytes that can be applied."""
    lost, lost_at_source = length >= kept, length >= source_kept
    if bytes_per_second is None:
        return OutageCost(length, None, None, None, lost, lost_at_source)
    days = max(0.0, (min(length, kept) - _DAY) / _DAY)
    stored = bytes_per_second * _DAY.total_seconds() / GIB * days * days / 2 * (_DAY / _MONTH)
    spare = None if drained_per_second is None else drained_per_second - bytes_per_second
    catch_up = None if spare is None or spare <= 0 else min(length, kept) * (bytes_per_second / spare)
    backlog = round(bytes_per_second * min(length, kept).total_seconds())
    return OutageCost(length, backlog, stored * prices.pubsub_storage, catch_up, lost, lost_at_source)


@dataclass(frozen=True, slots=True)
class StreamStorage:
    """What the change records of a Bigtable table take: bytes in all clusters, and dollars for 30 days."""

    size: int
    cost: float


def stream_storage(written_per_day: int, retention: timedelta, clusters: int, prices: Prices) -> StreamStorage:
    """Return the storage of change records of a table to which so many bytes a day are written."""
    size = round(written_per_day * RECORD_OVERHEAD * (retention / _DAY) * clusters)
    return StreamStorage(size, size / GIB * prices.bigtable_storage)


RULES: Final[Sequence[str]] = (
    "extract jobs (`bq extract`) and copies leave out changes that are not applied yet; EXPORT DATA, a query, does not",
    "partitions do not lower what applies and runtime merges read, the whole table; Millrace's clustering by key can",
    "a runtime merge serves one query: it does not move the watermark, and the next query pays again",
    "Standard edition has no background reservations: applies run on demand. CDC tables can be queried in each edition",
    "with a background reservation applies, and deletes with them, wait for its slots; on demand they do not",
)
"""What has cost others data or money; docs/how-to/choose-max-staleness.md has their sources."""
