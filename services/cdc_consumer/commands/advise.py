"""The command `advise`, as text: what follows for each mirror, for slots, and for the pipeline."""

import re
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, TextIO

import msgspec

from services.cdc_consumer.commands.status import ask_consumer
from services.cdc_consumer.core.advice.advice import Advice
from services.cdc_consumer.core.advice.capacity import ON_DEMAND, CapacityAdvice
from services.cdc_consumer.core.advice.figures import DAYS, ConsumerFigures
from services.cdc_consumer.core.advice.mirrors import JobKind, MirrorAdvice
from services.cdc_consumer.core.advice.pipeline import MULTIPLEXED_ABOVE, OutageCost, PipelineAdvice
from services.cdc_consumer.core.advice.prices import AS_OF
from shared.contracts.durations import format_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.sizes import format_size

_TIMEOUT: Final = 5.0  # seconds
_PLURAL: Final = {JobKind.APPLY: "background applies", JobKind.QUERY: "queries", JobKind.MERGE: "runtime merges"}
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
        appended={
            one["table"] if "." in one["table"] else f"{dataset}.{one['table']}": datetime.fromisoformat(one["applied"])
            for one in document["tables"]
            if one["applied"]
        },
    )


def print_advice(advice: Advice, out: TextIO, *, as_json: bool) -> None:
    """Write advice as text or as a JSON object."""
    if as_json:
        out.write(msgspec.json.format(msgspec.json.encode(advice), indent=2).decode() + "\n")
    else:
        out.writelines(f"{line}\n" for line in lines(advice))


def lines(advice: Advice) -> Iterator[str]:
    """Return advice as text."""
    yield f"figures of {DAYS} days up to {_moment(advice.at)}; US dollars, prices as of {AS_OF} (--price)"
    if not advice.mirrors:
        yield "(no mirror yet)"
    for mirror in advice.mirrors:
        yield from ("", *_mirror(mirror))
    for capacity in advice.capacity:
        yield from ("", *_capacity(capacity))
    yield from ("", "pipeline")
    for pipeline in advice.pipeline:
        yield from _pipeline(pipeline)
    yield from _outages(advice.outages)
    if advice.stream_storage is not None:
        size, cost = format_size(advice.stream_storage.size), _dollars(advice.stream_storage.cost)
        yield f"  Bigtable's change records: about {size}, {cost} for 30 days (1.5 x what is written, in each cluster)"
    yield from ("", "rules", *(f"  {rule}" for rule in advice.rules))
    if advice.problems:
        yield from ("", "to be changed, or not known")
        for problem in advice.problems:
            yield from (f"  {problem.check}: {problem.detail}", f"    -> {problem.fix}")


def _mirror(advice: MirrorAdvice) -> Iterator[str]:
    mirror, applies = advice.mirror, advice.applies
    about = ["size unknown" if mirror.size is None else format_size(mirror.size)]
    about += [f"clustered by {', '.join(mirror.clustered_by)}"] if mirror.clustered_by else ["not clustered"]
    yield f"{mirror.name} ({'; '.join(about)})"
    current = format_duration(mirror.max_staleness) if mirror.max_staleness else "unset"
    yield f"  max_staleness: {current}; recommended: " + (
        "unknown, no apply is in the history" if advice.recommended is None else format_duration(advice.recommended)
    )
    if applies is not None:
        jobs = "" if advice.jobs is None else f" of {advice.jobs.jobs} applies, the longest {advice.jobs.longest:.1f}s"
        yield (
            f"    2 x {applies.p95_seconds:.1f}s (95th percentile{jobs}) + 7m is {applies.recommended_minutes:.0f}m; "
            "or what you tolerate (--tolerable), if that is longer"
        )
    if mirror.watermark is None or advice.age is None:
        yield "  applied: never, or that is unknown"
    else:
        yield f"  applied up to {_moment(mirror.watermark)}, {_age(advice.age)} ago"
    yield (
        "  a query reads what is applied"
        if advice.kind_now is JobKind.QUERY
        else "  a query is a runtime merge while changes wait: it reads the whole table"
    )
    if advice.delete_applied is not None:
        yield "  deletes of --deleted-at: " + ("applied" if advice.delete_applied else "not applied yet")
    for cost in advice.costs:
        paid = (
            "bytes unknown"
            if cost.on_demand is None or cost.size is None
            else (f"{format_size(cost.size)} billed, {_dollars(cost.on_demand)} on demand")
        )
        yield (
            f"  {_PLURAL[cost.kind]}: {cost.jobs} jobs, {paid}; {cost.slot_hours:.2f} slot hours, "
            f"{_dollars(cost.capacity)} by capacity"
        )
    if advice.estimate is not None:
        applied = (
            ""
            if advice.estimate.applies is None
            else (f", background applies at the recommended pace {_dollars(advice.estimate.applies)} at most")
        )
        yield f"  30 days on demand: runtime merges of these queries {_dollars(advice.estimate.merges)}{applied}"


def _capacity(advice: CapacityAdvice) -> Iterator[str]:
    yield f"slots in {advice.location}"
    use = advice.slots
    yield (
        "  background applies used none"
        if use is None
        else f"  background applies: {use.busiest:.1f} in the busiest second (slots_used {use.per_query:.3f}), "
        f"{use.average:.3f} on average"
    )
    yield f"  applies run: {advice.applies or 'unknown'}; queries and runtime merges: {advice.merges or 'unknown'}"
    if advice.applies is None or advice.applies.startswith(ON_DEMAND):
        yield "  for slots of their own, run the first two statements in the admin project; the third, instead of the"
        yield "  second, is for all background jobs, also of indexes (where both are, the more specific one counts)"
        for statement in advice.statements:
            yield from (f"    {line}" for line in statement.splitlines())


def _pipeline(advice: PipelineAdvice) -> Iterator[str]:
    limit, rate = advice.quotas, advice.bytes_per_second
    yield (
        f"  {advice.location}: connections {'unknown' if advice.connections is None else advice.connections} of "
        f"{limit.connections:,}; throughput {'unknown' if rate is None else _rate(rate)} of "
        f"{_rate(limit.bytes_per_second)} (BigQuery's default quotas; yours are on the Quotas page of the console)"
    )
    if rate is None or advice.needed is None:
        yield "  start the consumer, or say what is expected: --changes, --change-bytes, --per"
        return
    few, many = advice.needed
    yield f"  that takes {few} to {many} connections (1 to 10 MB/s each)"
    if few > MULTIPLEXED_ABOVE:
        yield f"  above {MULTIPLEXED_ABOVE} in a client Google advises multiplexing, which Python has not: start more"
    if rate > 0.8 * limit.bytes_per_second:
        yield "  raise the quotas of throughput and of connections, in one proportion, before you start"
    yield (
        f"  30 days of it: Pub/Sub {_dollars(advice.pubsub_cost or 0)}, Storage Write API "
        f"{_dollars(advice.write_cost or 0)} (2 TiB a month are free), and the machines"
    )


def _outages(outages: Iterable[OutageCost]) -> Iterator[str]:
    for one in outages:
        words = [f"  an outage of the consumer of {format_duration(one.length)}:"]
        if one.backlog is not None:
            words.append(f"{format_size(one.backlog)} wait in Pub/Sub, {_dollars(one.storage_cost or 0)};")
            words.append(f"caught up in {_age(one.catch_up)};" if one.catch_up is not None else "catching up unknown;")
        words.append("LOST: what the subscription no longer keeps (resync)" if one.lost else "nothing is lost")
        words.append("; with the readers also away, the stream no longer has it" if one.lost_at_source else "")
        yield " ".join(words[:-1]) + words[-1]
    yield "  rows of a snapshot that waited for 46 hours are not applied: the table then needs another snapshot"


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


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"
