"""The command `advise`, as text: what follows for each mirror, for slots, and for the pipeline."""

import re
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from services.cdc_consumer.commands.status import ask_consumer
from services.cdc_consumer.core.advice.advice import Advice
from services.cdc_consumer.core.advice.capacity import ON_DEMAND, CapacityAdvice
from services.cdc_consumer.core.advice.figures import DAYS, ConsumerFigures, MirrorFigures
from services.cdc_consumer.core.advice.mirrors import JobKind, MirrorAdvice
from services.cdc_consumer.core.advice.pipeline import MULTIPLEXED_ABOVE, PipelineAdvice, Quotas
from services.cdc_consumer.core.advice.prices import AS_OF
from shared.contracts.durations import format_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.sizes import format_size
from shared.runtime.findings import wrapped

_TIMEOUT: Final = 5.0  # seconds
_PLURAL: Final = {
    JobKind.APPLY: "background applies",
    JobKind.QUERY: "queries",
    JobKind.MERGE: "runtime merges",
    JobKind.QUERY_OR_MERGE: "queries and merges",
}
_METRIC: Final = re.compile(
    r"^millrace_consumer_(append_connections|appended_bytes_total|changes_total) (\S+)$", re.MULTILINE
)


def consumer_figures(address: str, dataset: str, at: datetime) -> ConsumerFigures:
    """Return what the consumer at an address measures; nothing where none runs there.

    Rates are means since its start. ``dataset`` is that of tables which the consumer names without one.
    """
    try:
        document = ask_consumer(address)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT) as answer:
            metrics = {name: float(value) for name, value in _METRIC.findall(answer.read().decode())}
    except (MisconfiguredError, OSError):
        return ConsumerFigures()
    seconds = max(1.0, (at - datetime.fromisoformat(document["since"])).total_seconds())
    rates = (metrics[name] / seconds if name in metrics else None for name in ("appended_bytes_total", "changes_total"))
    size, changes = rates
    return ConsumerFigures(
        connections=round(metrics["append_connections"]) if "append_connections" in metrics else None,
        bytes_per_second=size,
        changes_per_second=changes,
        unapplied={
            one["table"] if "." in one["table"] else f"{dataset}.{one['table']}": datetime.fromisoformat(since)
            for one in document["tables"]
            if (since := one.get("unapplied_since"))  # an older consumer may answer
        },
    )


def lines(advice: Advice) -> Iterator[str]:
    """Return advice as text: what is known, then what follows from it."""
    yield f"{DAYS} days up to {_moment(advice.asked.at)}; US dollars at prices of {AS_OF} (--price)"
    if not advice.mirrors:
        yield "(no mirror yet)"
    for mirror in advice.mirrors:
        yield from ("", *_mirror(mirror))
    for capacity in advice.capacity:
        yield from ("", *_capacity(capacity))
    yield from ("", "pipeline")
    yield from _pipeline(advice.pipeline, measured=advice.asked.changes_per_second is None)
    for limit in advice.quotas:
        yield from _quotas(limit, advice.pipeline.bytes_per_second or 0)
    yield "    your project's quotas are on the Quotas page of the console"
    if advice.asked.stream_storage is not None:
        size, cost = format_size(advice.asked.stream_storage.size), _dollars(advice.asked.stream_storage.cost)
        yield f"  Bigtable's change records: about {size}, {cost} for 30 days (1.5 x the writes, in each cluster)"
    yield from ("", *_outages(advice))
    yield from ("", "rules", *(line for rule in advice.rules for line in wrapped(rule, "  - ", "    ")))
    for heading, unread in (("not known", True), ("to do", False)):
        problems = [one for one in advice.problems if one.unread is unread]
        if problems:
            yield from ("", heading)
        for problem in problems:
            yield from wrapped(f"{problem.check}: {problem.detail}", "  ", "    ")
            yield from wrapped(problem.fix, "    -> ", "       ")


def _mirror(advice: MirrorAdvice) -> Iterator[str]:
    mirror, applies, best = advice.mirror, advice.applies, advice.recommended
    size = "size unknown" if mirror.size is None else format_size(mirror.size)
    yield f"{mirror.name} ({size}; " + (
        f"clustered by {', '.join(mirror.clustered_by)})" if mirror.clustered_by else "not clustered)"
    )
    text = f"{_staleness(mirror)}; recommended: " + ("unknown" if best is None else format_duration(best))
    if applies is not None:
        jobs = "" if advice.jobs is None else f"; {advice.jobs.jobs} of them, the longest {advice.jobs.longest:.1f}s"
        text += (
            f". Background applies need {applies.recommended_minutes:.0f}m, which is 2 x {applies.p95_seconds:.1f}s "
            f"(their 95th percentile{jobs}) + 7m. What you tolerate counts if it is longer (--tolerable)"
        )
    yield from _row("max_staleness", text)
    if mirror.watermark is None or advice.age is None:
        yield from _row("applied", "nothing yet, as far as is known")
    else:
        yield from _row("applied", f"up to {_moment(mirror.watermark)}, {_age(advice.age)} ago")
    if advice.delete_applied is not None:
        yield from _row(
            "deletes", f"written by --deleted-at: {'applied' if advice.delete_applied else 'not applied yet'}"
        )
    now = "reads what is applied"
    if advice.kind_now is JobKind.MERGE:
        now = "is a runtime merge while changes wait: it reads the whole table"
    yield from _row("a query now", now)
    if advice.costs:
        yield f"  {'jobs':<22}{'number':>8}{'billed':>10}{'on demand':>12}{'slot hours':>12}{'by capacity':>13}"
    for cost in advice.costs:
        billed = "unknown" if cost.size is None else format_size(cost.size)
        yield (
            f"    {_PLURAL[cost.kind]:<20}{cost.jobs:>8,}{billed:>10}{_dollars(cost.on_demand):>12}"
            f"{cost.slot_hours:>12.2f}{_dollars(cost.capacity):>13}"
        )
    if advice.estimate is not None:
        text = f"{_dollars(advice.estimate.merges)} if each of these queries were a runtime merge"
        if best is not None and advice.estimate.applies is not None:
            text += (
                f"; {_dollars(advice.estimate.applies)} at most for a background apply every {format_duration(best)}"
            )
        yield from _row("30 days", f"on demand: {text}")


def _capacity(advice: CapacityAdvice) -> Iterator[str]:
    yield f"slots in {advice.location}"
    use = advice.slots
    yield (
        "  background applies used none"
        if use is None
        else f"  background applies used {use.busiest:.1f} in the busiest second, {use.average:.3f} on average "
        f"(slots_used {use.per_query:.3f})"
    )
    yield f"  applies run: {advice.applies or 'unknown'}"
    yield f"  queries and runtime merges run: {advice.merges or 'unknown'}"
    if advice.applies is None or advice.applies.startswith(ON_DEMAND):
        yield "  for slots of their own, run in the admin project:"
        notes = (
            "1. a reservation",
            "2. background applies run in it",
            "or, in place of 2, all background jobs do, those of indexes too (where both are, 2 counts)",
        )
        for note, statement in zip(notes, advice.statements, strict=True):
            yield from (f"    {line}" for line in (f"-- {note}", *statement.splitlines()))


def _pipeline(advice: PipelineAdvice, *, measured: bool) -> Iterator[str]:
    rate = advice.bytes_per_second
    connections = "unknown" if advice.connections is None else f"{advice.connections:,}"
    origin = "" if rate is None else ", the consumer's mean since its start" if measured else ", as expected"
    yield f"  throughput {'unknown' if rate is None else _rate(rate)}{origin}; {connections} connections open"
    if rate is None or advice.needed is None:
        yield "    for more, start the consumer, or name what you expect: --changes, --change-bytes, --per"
        return
    few, many = advice.needed
    yield f"    that takes {few:,} to {many:,} connections (1 to 10 MB/s each)"
    if few > MULTIPLEXED_ABOVE:
        yield f"    above {MULTIPLEXED_ABOVE} in a client Google advises multiplexing, which Python has not:"
        yield "    start more consumers"
    yield (
        f"    30 days of it: Pub/Sub {_dollars(advice.pubsub_cost)}, Storage Write API {_dollars(advice.write_cost)} "
        "(2 TiB a month are free)"
    )


def _quotas(limit: Quotas, rate: float) -> Iterator[str]:
    yield (
        f"  default quotas of {limit.location}: {limit.connections:,} connections, {_rate(limit.bytes_per_second)} "
        "for all that is written there"
    )
    if rate > 0.8 * limit.bytes_per_second:
        yield "    raise both in one proportion before you write all of it there"


def _outages(advice: Advice) -> Iterator[str]:
    yield f"{'outage':<10}{'waits':>10}{'storage':>13}{'catching up':>13}   {'readers go on':<18}readers down, too"
    for one in advice.outages:
        waits, caught = "unknown", "unknown"
        if one.backlog is not None:
            waits, caught = format_size(one.backlog), "never" if one.catch_up is None else _age(one.catch_up)
        lost, at_source = ("LOST" if lost else "nothing is lost" for lost in (one.lost, one.lost_at_source))
        yield (
            f"  {format_duration(one.length):<8}{waits:>10}{_dollars(one.storage_cost):>13}{caught:>13}   "
            f"{lost:<18}{at_source}"
        )
    kept, source_kept = format_duration(advice.asked.kept), format_duration(advice.asked.source_kept)
    yield f"  Pub/Sub keeps {kept} (KEEP_MESSAGES_FOR; the consumer starts with no subscription that keeps less)"
    yield f"  the change stream keeps {source_kept} ({advice.asked.source_kept_by})"
    yield f"  catching up: by a consumer that applies {advice.asked.drained:,.0f} changes/s (--drained)"
    yield "  LOST: resync each table afterwards (docs/how-to/size.md has the steps)"
    yield "  rows of a snapshot that waited for 46 hours are not applied: the table then needs another one"


def _row(label: str, text: str) -> Sequence[str]:
    return wrapped(text, f"  {label:<15}", " " * 17)


def _staleness(mirror: MirrorFigures) -> str:
    return format_duration(mirror.max_staleness) if mirror.max_staleness else "unset"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _age(length: timedelta) -> str:
    seconds = round(length.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds}s"


def _rate(size: float) -> str:
    return f"{format_size(round(size))}/s"


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:,.2f}"
