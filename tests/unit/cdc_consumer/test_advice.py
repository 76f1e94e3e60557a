"""Advice on max_staleness, slots, throughput and outages, by the figures of Google's documents."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.commands.advise import consumer_figures, lines
from services.cdc_consumer.core.advice.advice import Advice, Question, advise
from services.cdc_consumer.core.advice.capacity import ReservationNames, slot_use, statements
from services.cdc_consumer.core.advice.figures import (
    AdviceProblem,
    ApplyDuration,
    Assignment,
    ConsumerFigures,
    JobTotals,
    MirrorFigures,
    RegionFigures,
)
from services.cdc_consumer.core.advice.mirrors import JobKind, delete_is_applied, kind_of_query, recommended
from services.cdc_consumer.core.advice.pipeline import (
    advise_on_pipeline,
    outage,
    quotas,
    quotas_of,
    stream_storage,
)
from services.cdc_consumer.core.advice.prices import GIB, TIB, Prices
from services.cdc_consumer.core.stream.counts import Appends, Applied, Counts, Report, TableNote
from services.cdc_consumer.ports import Mirror
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.health import Health, serving_health
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.world import SetClock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TEN_MINUTES = timedelta(minutes=10)
T0 = datetime(2026, 11, 22, 10, tzinfo=UTC)
NAMES = ReservationNames(admin_project="admin")


def t(minute: int) -> datetime:
    """Return T20, T25, ... of the document's drawings."""
    return T0 + timedelta(minutes=minute)


def a_mirror(**more: Any) -> MirrorFigures:
    return MirrorFigures(**{"name": "d.Orders", "max_staleness": TEN_MINUTES, "watermark": t(20), "size": TIB, **more})


def a_region(*mirrors: MirrorFigures, **more: Any) -> RegionFigures:
    return RegionFigures(location="US", mirrors=mirrors or (a_mirror(),), **more)


def advice_on(
    *regions: RegionFigures, consumer: ConsumerFigures | None = None, at: datetime | None = None, **more: Any
) -> Advice:
    question = Question(project="p", at=at or t(25), names=NAMES, **more)
    return advise(regions, consumer or ConsumerFigures(), question)


def shown(advice: Advice) -> str:
    """Return what is printed, whatever its lines."""
    return " ".join(word for line in lines(advice) for word in line.split())


def problems(advice: Advice) -> Mapping[str, AdviceProblem]:
    return {one.check: one for one in advice.problems if not one.unread}


# What follows for a mirror.


def test_the_recommended_staleness_is_the_larger_of_what_is_tolerable_and_what_applies_need() -> None:
    applies = ApplyDuration(95.0, 11)

    assert recommended(applies, None) == timedelta(minutes=11)
    assert recommended(applies, TEN_MINUTES) == timedelta(minutes=11)
    assert recommended(applies, timedelta(minutes=30)) == timedelta(minutes=30)
    assert recommended(None, TEN_MINUTES) == TEN_MINUTES
    assert recommended(None, None) is None


@pytest.mark.parametrize(
    ("staleness", "minute", "kind"),
    [
        (TEN_MINUTES, 25, JobKind.QUERY),  # 5 minutes stale
        (TEN_MINUTES, 30, JobKind.QUERY),
        (TEN_MINUTES, 35, JobKind.MERGE),  # 15 minutes stale
        (timedelta(), 21, JobKind.MERGE),
    ],
)
def test_a_query_merges_at_run_time_once_the_watermark_is_older_than_max_staleness(
    staleness: timedelta, minute: int, kind: JobKind
) -> None:
    assert kind_of_query(a_mirror(max_staleness=staleness), t(minute)) is kind
    assert kind_of_query(a_mirror(max_staleness=staleness, watermark=None), t(minute)) is JobKind.MERGE


def test_a_delete_is_applied_once_the_watermark_has_passed_the_time_it_was_streamed() -> None:
    assert not delete_is_applied(t(20), t(22))
    assert not delete_is_applied(t(20), t(20))
    assert delete_is_applied(t(20), t(19))
    assert not delete_is_applied(None, t(19))

    (one,) = advice_on(a_region(), streamed=t(19)).mirrors
    assert one.delete_applied is True
    (one,) = advice_on(a_region()).mirrors
    assert one.delete_applied is None
    assert one.age == timedelta(minutes=5)


def test_jobs_of_each_kind_are_priced_on_demand_and_by_capacity() -> None:
    region = a_region(
        apply_jobs={"d.Orders": JobTotals(7, 3_600_000 * 10, 4 * TIB, 90.0)},
        query_jobs={"d.Orders": JobTotals(3, 3_600_000, None)},
        applies={"d.Orders": ApplyDuration(90.0, 10)},
    )

    (one,) = advice_on(region, prices=Prices(on_demand=5.0, slot_hour=0.05)).mirrors

    assert [(cost.kind, cost.jobs, cost.on_demand, cost.capacity) for cost in one.costs] == [
        (JobKind.APPLY, 7, 20.0, 0.5),
        (JobKind.QUERY_OR_MERGE, 3, None, 0.05),
    ]


def test_without_max_staleness_each_query_is_a_runtime_merge_of_the_whole_table() -> None:
    mirror = a_mirror(max_staleness=timedelta(), size=2 * TIB)
    region = a_region(
        mirror, query_jobs={"d.Orders": JobTotals(70, 1, 1)}, applies={"d.Orders": ApplyDuration(30.0, 8)}
    )

    (one,) = advice_on(region, tolerable=HOUR, prices=Prices(on_demand=1.0)).mirrors

    assert [cost.kind for cost in one.costs] == [JobKind.MERGE]
    assert one.estimate is not None
    assert one.estimate.merges == pytest.approx(300 * 2.0)  # 70 in seven days are 300 in thirty
    assert one.estimate.applies == pytest.approx(30 * 24 * 2.0)  # one an hour


def test_a_max_staleness_that_applies_cannot_keep_up_with_is_to_be_raised() -> None:
    applies = {"d.Orders": ApplyDuration(95.0, 11)}
    found = problems(advice_on(a_region(applies=applies)))

    assert list(found) == ["d.Orders: max_staleness"]
    assert 'max_staleness = "11m"' in found["d.Orders: max_staleness"].fix
    assert not problems(advice_on(a_region(a_mirror(max_staleness=timedelta(minutes=11)), applies=applies)))
    assert not problems(advice_on(a_region(a_mirror(max_staleness=timedelta()), applies=applies)))
    tolerable = a_region(applies={"d.Orders": ApplyDuration(90.0, 10)})
    assert not problems(advice_on(tolerable, tolerable=HOUR)), "staler would be cheaper, but this is no mistake"


def test_changes_that_wait_behind_a_watermark_that_stands_are_named() -> None:
    consumer = ConsumerFigures(unapplied={"d.Orders": t(22)})

    assert not problems(advice_on(a_region(), consumer=consumer, at=t(42)))
    found = problems(advice_on(a_region(), consumer=consumer, at=t(43)))
    assert list(found) == ["d.Orders: changes are not applied"]
    assert "a change was written 21m ago" in found["d.Orders: changes are not applied"].detail
    applied = ConsumerFigures(unapplied={"d.Orders": t(19)})
    assert not problems(advice_on(a_region(), consumer=applied, at=t(500))), "nothing waits"
    unset = a_region(a_mirror(max_staleness=timedelta()))
    assert not problems(advice_on(unset, consumer=consumer, at=t(22) + DAY))
    assert problems(advice_on(unset, consumer=consumer, at=t(23) + DAY))


def test_the_first_change_after_idle_days_has_to_wait_for_as_long_as_any_other() -> None:
    first = ConsumerFigures(unapplied={"d.Orders": t(20) + 3 * DAY})

    for staleness, limit in ((TEN_MINUTES, 2 * TEN_MINUTES), (timedelta(), DAY)):
        region = a_region(a_mirror(max_staleness=staleness))
        assert not problems(advice_on(region, consumer=first, at=t(20) + 3 * DAY + limit))
        assert problems(advice_on(region, consumer=first, at=t(21) + 3 * DAY + limit))


def test_applies_that_failed_and_partitions_are_named() -> None:
    region = a_region(a_mirror(partitioned_by="day"), apply_jobs={"d.Orders": JobTotals(9, 1, 1, failed=2)})

    assert list(problems(advice_on(region))) == ["d.Orders: failed applies", "d.Orders: partitioned"]


def test_without_any_apply_the_length_of_applies_is_unknown_and_the_next_step_is_named() -> None:
    advice = advice_on(a_region())

    (unknown,) = advice.problems
    assert (unknown.check, unknown.unread) == ("background applies", True)
    assert "--tolerable" in unknown.fix
    assert advice.mirrors[0].recommended is None
    assert "max_staleness 10m; recommended: unknown" in shown(advice)


# Slots, reservations, assignments.


def test_the_slots_of_a_second_are_sixty_times_the_documents_slots_used() -> None:
    """The worked figure: two jobs of one period, of 60,000 and 30,000 slot milliseconds, are slots_used 1.5."""
    use = slot_use([0.1, 1.5])

    assert use is not None
    assert (use.per_query, use.busiest) == (1.5, 90.0)
    assert use.average == pytest.approx(96_000 / (7 * 86_400 * 1_000))
    assert slot_use([]) is None


def test_the_statements_of_a_reservation_are_ready_to_run() -> None:
    names = ReservationNames(admin_project="admin-p", reservation="cdc", assignment="applies")
    made = statements(names, "EU", "my-project", slot_use([1.5]))

    path = "admin-p.region-eu.cdc"
    size = "edition = 'ENTERPRISE',\n  slot_capacity = 0,\n  autoscale_max_slots = 100"
    to = "assignee = 'projects/my-project'"
    assert made == [
        f"CREATE RESERVATION\n  `{path}`\nOPTIONS (\n  {size});",
        f"CREATE ASSIGNMENT\n  `{path}.applies`\nOPTIONS (\n  {to},\n  job_type = 'BACKGROUND_CHANGE_DATA_CAPTURE');",
        f"CREATE ASSIGNMENT\n  `{path}.applies-background`\nOPTIONS (\n  {to},\n  job_type = 'BACKGROUND');",
    ]
    assert "autoscale_max_slots = 50)" in statements(names, "US", "p", None)[0]


@pytest.mark.parametrize("identifier", ["Bad", "-a", "a-", "a_b", "", "a" * 65])
@pytest.mark.parametrize("option", ["reservation", "assignment"])
def test_an_id_that_bigquery_refuses_is_refused_before_it_is_printed(option: str, identifier: str) -> None:
    with pytest.raises(MisconfiguredError, match=f"--{option} .*lower-case letters, digits and dashes"):
        ReservationNames(**{"admin_project": "p", option: identifier})


def test_standard_edition_is_refused_for_background_jobs() -> None:
    with pytest.raises(MisconfiguredError, match=r"STANDARD.*on demand"):
        ReservationNames(admin_project="p", edition="STANDARD")


def assigned(
    job_type: str, reservation: str = "r", kind: str = "PROJECT", who: str = "p", edition: str = "ENTERPRISE"
) -> Assignment:
    return Assignment(reservation, job_type, kind, who, edition)


@pytest.mark.parametrize(
    ("assignments", "applies"),
    [
        ([], "on demand"),
        ([assigned("QUERY")], "on demand"),
        ([assigned("BACKGROUND")], "reservation r (BACKGROUND, enterprise)"),
        (
            [assigned("BACKGROUND"), assigned("BACKGROUND_CHANGE_DATA_CAPTURE", "cdc")],
            "reservation cdc (BACKGROUND_CHANGE_DATA_CAPTURE, enterprise)",
        ),
        ([assigned("BACKGROUND", who="other")], "on demand"),
        ([assigned("BACKGROUND", "none")], "on demand (assigned to none, BACKGROUND)"),
        ([assigned("BACKGROUND", kind="folder", who="12")], "on demand, unless the project is in folder 12 (r)"),
    ],
)
def test_who_pays_for_applies_follows_from_the_most_specific_assignment(
    assignments: Sequence[Assignment], applies: str
) -> None:
    (capacity,) = advice_on(a_region(assignments=assignments)).capacity

    assert capacity.applies == applies


def test_an_assignment_to_standard_edition_has_no_effect_and_is_named() -> None:
    found = problems(advice_on(a_region(assignments=[assigned("BACKGROUND", edition="STANDARD")])))

    assert "no background reservations" in found["assignment of BACKGROUND"].detail


# Prices, throughput, outages, Bigtable.


def test_a_price_can_be_changed_and_a_wrong_one_is_refused() -> None:
    assert Prices().changed(["on_demand=7.5", "write=0"]) == Prices(on_demand=7.5, write=0.0)
    for wrong in ("on_demand", "on_demand=", "on_demand=-1", "on_demand=nan", "dinner=3", "=3"):
        with pytest.raises(MisconfiguredError, match=r"NAME=DOLLARS, with a NAME of on_demand, slot_hour"):
            Prices().changed([wrong])


def test_expected_throughput_is_computed_as_in_the_documents_example() -> None:
    """100 million endpoints that send 1,500 bytes each minute are 2.5 GB a second."""
    advice = advice_on(a_region(), changes_per_second=100_000_000 / 60, change_bytes=1_500)
    pipeline = advice.pipeline

    assert "1h 9.0 TB $0.00 never nothing is lost nothing is lost" in shown(advice)
    assert pipeline.bytes_per_second == pytest.approx(2.5e9)
    assert pipeline.needed == (250, 2_500)
    assert advice.quotas == [quotas("US")]
    assert (quotas("EU").connections, quotas("europe-west4").connections) == (10_000, 1_000)
    assert (quotas("EU").bytes_per_second, quotas("europe-west4").bytes_per_second) == (3_000_000_000, 300_000_000)


def test_what_a_throughput_costs_is_reported_once_whatever_the_regions_and_without_any() -> None:
    """10,000 changes of 1,000 bytes in 10 seconds are 1 MB a second."""
    expected: Mapping[str, Any] = {"changes_per_second": 1_000, "change_bytes": 1_000}
    regions = [RegionFigures(location=one, mirrors=[a_mirror()]) for one in ("US", "europe-west4")]
    none, one, two = (shown(advice_on(*regions[:number], **expected)) for number in range(3))

    for text in (none, one, two):
        assert text.count("throughput 1.0 MB/s, as expected; unknown connections open") == 1
        assert text.count("30 days of it: Pub/Sub $188.59") == 1
        assert "1h 3.6 GB $0.00 73s" in text
    assert "default quotas of europe-west4" in two
    assert "default quotas of europe-west4" not in one
    assert [each.location for each in quotas_of([])] == ["US", "EU", "any other region"]
    for each in ("US: 10,000 connections, 3.0 GB/s", "any other region: 1,000 connections, 300.0 MB/s"):
        assert f"default quotas of {each} for all that is written there" in none


def test_quotas_are_to_be_raised_where_a_throughput_comes_near_them() -> None:
    expected: Mapping[str, Any] = {"changes_per_second": 250_000, "change_bytes": 1_000}
    text = shown(advice_on(**expected))

    assert text.count("raise both in one proportion") == 1
    assert "300.0 MB/s for all that is written there raise both" in text


def test_a_backlog_is_caught_up_with_at_the_rate_that_is_named() -> None:
    expected: Mapping[str, Any] = {"changes_per_second": 10_000, "change_bytes": 1_000}

    for drained, takes in ((20_000, "60.0m"), (10_000, "never"), (50_000, "15.0m")):
        text = shown(advice_on(drained=drained, **expected))
        assert f"1h 36.0 GB $0.00 {takes}" in text, text
        assert f"a consumer that applies {drained:,} changes/s (--drained)" in text


def test_the_write_api_costs_nothing_below_two_tebibytes_a_month() -> None:
    month = 30 * 86_400
    free = advise_on_pipeline(2, 2 * TIB / month, Prices(write=1.0, pubsub=10.0))
    more = advise_on_pipeline(2, 3 * TIB / month, Prices(write=1.0))

    assert free.write_cost == pytest.approx(0.0)
    assert free.pubsub_cost == pytest.approx(40.0)  # 2 TiB published, 2 delivered
    assert more.write_cost == pytest.approx(1_024.0)


def an_outage(length: timedelta, **more: Any) -> Any:
    given = {
        "kept": 7 * DAY,
        "source_kept": DAY,
        "bytes_per_second": 1e6,
        "drained_per_second": 5e6,
        "prices": Prices(),
    }
    return outage(length, **{**given, **more})


def test_an_outage_loses_what_the_subscription_no_longer_keeps() -> None:
    assert [(an_outage(n).lost, an_outage(n).lost_at_source) for n in (HOUR, DAY, 7 * DAY)] == [
        (False, False),
        (False, True),
        (True, True),
    ]
    assert not an_outage(7 * DAY, kept=31 * DAY).lost
    assert an_outage(HOUR, bytes_per_second=None).backlog is None


def test_messages_cost_storage_from_their_second_day_on() -> None:
    daily = GIB / 86_400  # a GiB a day

    assert an_outage(DAY, bytes_per_second=daily).storage_cost == 0.0
    of_three = an_outage(3 * DAY, bytes_per_second=daily, prices=Prices(pubsub_storage=30.0)).storage_cost
    assert of_three == pytest.approx(2.0)  # up to two GiB, for two days: one GiB on average


def test_change_records_of_bigtable_take_one_and_a_half_times_what_is_written_in_each_cluster() -> None:
    assert stream_storage(GIB, DAY, 1, Prices(bigtable_storage=1.0)).size == round(1.5 * GIB)
    found = stream_storage(GIB, 7 * DAY, 2, Prices(bigtable_storage=1.0))
    assert (found.size, found.cost) == (21 * GIB, 21.0)


def test_a_running_consumer_is_asked_for_its_throughput() -> None:
    registry, clock = CollectorRegistry(), SetClock()
    clock.time = Nanoseconds(round(T0.timestamp()) * 10**9 + 123_456_789)
    mirrors = [Mirror("Orders", 1), Mirror("e.T", 1), Mirror("idle", 1)]
    status = ConsumerStatus(clock, lambda _datasets: mirrors, lambda _mirror: None)
    committed, applied = (clock.now() // 1000 + 1_000_000 * seconds for seconds in (0, 1))
    note = TableNote(latest=Applied(committed, committed, applied))
    report = Report(
        counts=Counts(messages=1, changes=60, tables={"Orders": note, "e.T": note}),
        process="a",
        appends=Appends.of_one(6_000, 0.1),
        connections=3,
    )
    metrics = ConsumerMetrics(registry, clock)
    metrics.take(report)
    status.take(report)
    status.applied_up_to({"e.T": T0 + HOUR})

    document = partial(status.document, ready=True, alive=True)
    with serving_health(Health(), registry, Stop(), "127.0.0.1", 0, document) as port:
        found = consumer_figures(f"127.0.0.1:{port}", "d", T0 + timedelta(seconds=60, microseconds=123_456))

    assert found.connections == 3
    assert found.bytes_per_second == pytest.approx(100)
    assert found.changes_per_second == pytest.approx(1)
    assert found.unapplied == {"d.Orders": T0 + timedelta(seconds=1, microseconds=123_456)}
    assert consumer_figures(f"127.0.0.1:{port}", "d", T0) == ConsumerFigures(), "none runs there"


def test_the_text_names_every_figure_and_every_rule() -> None:
    region = a_region(
        applies={"d.Orders": ApplyDuration(90.0, 10)},
        apply_jobs={"d.Orders": JobTotals(7, 3_600_000, TIB, 91.0)},
        query_jobs={"d.Orders": JobTotals(3, 3_600_000, TIB)},
        slots_used=[1.5],
        assignments=[],
    )
    consumer = ConsumerFigures(connections=2, bytes_per_second=1e6, changes_per_second=1e3)
    advice = advice_on(
        region, consumer=consumer, stream_storage=stream_storage(GIB, DAY, 1, Prices()), streamed=t(1), tolerable=HOUR
    )
    text = shown(advice)

    for words in (
        "d.Orders (1.1 TB; not clustered)",
        "max_staleness 10m; recommended: 1h",
        "need 10m, which is 2 x 90.0s (their 95th percentile; 7 of them, the longest 91.0s) + 7m",
        "applied up to 2026-11-22T10:20:00Z, 5.0m ago",
        "deletes written by --deleted-at: applied",
        "background applies 7 1.1 TB $6.25 1.00 $0.06",
        "queries and merges 3 1.1 TB $6.25 1.00 $0.06",
        "$80.36 if each of these queries were a runtime merge; $4,500.00 at most for a background apply every 1h",
        "used 90.0 in the busiest second, 0.000 on average (slots_used 1.500)",
        "throughput 1.0 MB/s, the consumer's mean since its start; 2 connections open",
        "default quotas of US: 10,000 connections, 3.0 GB/s for all that is written there",
        "7d 604.8 GB $13.04 3.4h LOST LOST",
        "Pub/Sub keeps 7d (KEEP_MESSAGES_FOR; the consumer starts with no subscription that keeps less)",
        "the change stream keeps 1d (assumed",
        "a consumer that applies 50,000 changes/s",
        "Bigtable's change records: about 1.6 GB",
        "EXPORT DATA, a query, does not",
        "Standard edition has no background reservations",
    ):
        assert words in text, text
    assert max(map(len, lines(advice))) <= 100
