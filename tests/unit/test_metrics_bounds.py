"""No label of any metric can grow without bound: closed lists, or a limit; and every metric says what it is."""

import re
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.core.stream.counts import Applied, Counts, Report, TableNote
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from shared.runtime.clock import SystemClock
from shared.runtime.metrics import MOST_TABLES, OTHER_TABLES, PublishingMetrics, count_runtime
from tests.documents.metrics import LABELS, SERVICES, collectors, labels_of
from tests.unit.cdc_consumer.status_world import WAITS, World


@pytest.mark.parametrize("register", SERVICES.values(), ids=SERVICES)
def test_every_label_has_a_bound_that_is_written_down(register: Callable[[CollectorRegistry], object]) -> None:
    registered = collectors(register)

    assert len(registered) > 5
    assert {label for one in registered for label in labels_of(one)} <= LABELS.keys()


def test_a_metric_of_several_services_has_the_same_labels_in_each() -> None:
    labelled: dict[str, set[tuple[str, ...]]] = {}
    for register in SERVICES.values():
        for one in collectors(register):
            for metric in one.collect():
                labelled.setdefault(metric.name, set()).add(tuple(labels_of(one)))
    assert {name: labels for name, labels in labelled.items() if len(labels) > 1} == {}


NAME = re.compile(r"millrace(_[a-z]+)+")
SENTENCE = re.compile(r"(?:[A-Z]|1 while )[^.;:]+\.")
NO_BASE_UNITS = re.compile(r"_(ms|millis\w*|micros\w*|nanos\w*|minutes?|hours?|days?|[km]b|percent)(_|$)")
OF_OUR_OWN = re.compile(r"\b(held|put off|given? back|set aside|trouble|told|mend\w*|cures?|pieces?|in vain|away)\b")


def test_every_metric_is_named_and_described_as_prometheus_wants_it() -> None:
    described: dict[str, tuple[str, str]] = {}
    for register in (*SERVICES.values(), count_runtime):
        for metric in (metric for one in collectors(register) for metric in one.collect()):
            if metric.name.startswith("process_"):  # the client library's own
                continue
            assert NAME.fullmatch(metric.name), metric.name
            assert not NO_BASE_UNITS.search(metric.name), metric.name
            assert not metric.name.endswith("_total"), f"{metric.name}: the suffix of counters is added by the library"
            assert ("_seconds" in metric.name) == metric.name.endswith("_seconds"), metric.name
            assert ("Unix time" in metric.documentation) == metric.name.endswith("_timestamp_seconds"), metric.name
            assert SENTENCE.fullmatch(metric.documentation), f"{metric.name}: {metric.documentation}"
            assert not OF_OUR_OWN.search(metric.documentation), f"{metric.name}: {metric.documentation}"
            is_and_means = (metric.type, metric.documentation)
            assert described.setdefault(metric.name, is_and_means) == is_and_means, metric.name
    assert len(described) > 50


def test_tables_in_trouble_are_shown_up_to_a_limit_and_all_are_counted() -> None:
    registry = CollectorRegistry()
    world = World()
    status = world.status
    ConsumerMetrics(registry, world.clock).show_tables(status.failing, status.refused, status.pending_resync)

    def shown() -> set[str]:
        found = (one.samples for one in registry.collect() if "failing_since" in one.name)
        return {sample.labels["table"] for samples in found for sample in samples}

    world.take(Counts(tables={f"table_{number}": WAITS for number in range(1_000)}))
    assert len(shown()) == MOST_TABLES
    assert registry.get_sample_value("millrace_consumer_failing_tables") == 1_000

    world.take(Counts(tables={f"table_{number}": TableNote() for number in range(1_000)}))
    assert shown() == set()
    assert registry.get_sample_value("millrace_consumer_failing_tables") == 0

    world.take(Counts(tables={"another": WAITS}))
    assert shown() == {"another"}


def test_an_unknown_reason_makes_no_series_of_its_own() -> None:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(registry, SystemClock())

    metrics.take(Report(counts=Counts(dead_letters={"made-up": 2, "undecodable": 1})))

    def counted(reason: str) -> float | None:
        return registry.get_sample_value("millrace_dead_letters_total", {"reason": reason})

    assert (counted("made-up"), counted("unexplained"), counted("undecodable")) == (None, 2.0, 1.0)


def test_a_reader_shows_tables_up_to_a_limit_and_adds_up_the_others() -> None:
    registry = CollectorRegistry()
    metrics = SpannerReaderMetrics(registry, "s")

    def value(name: str, table: str) -> float | None:
        return registry.get_sample_value(f"millrace_reader_{name}", {"table": table})

    for number in range(1_000):
        metrics.dropped(f"table_{number}", 2)
    metrics.snapshots_left({f"table_{number}": 3 for number in range(1_000)})
    assert value("dropped_changes_total", "table_0") == 2
    assert value("dropped_changes_total", OTHER_TABLES) == 2 * (1_000 - MOST_TABLES)
    assert value("snapshot_ranges_left", OTHER_TABLES) == 3 * (1_000 - MOST_TABLES)

    metrics.snapshots_left({"table_1": 1})
    assert [value("snapshot_ranges_left", table) for table in ("table_0", "table_1", OTHER_TABLES)] == [0, 1, 0]


def test_histograms_by_table_have_as_many_tables_and_one_series_for_all_others() -> None:
    registry = CollectorRegistry()
    consumer, publishing = ConsumerMetrics(registry, SystemClock()), PublishingMetrics(of_reader := CollectorRegistry())
    for number in range(1_000):
        note = TableNote(latest=Applied(1_000_000, 2_000_000, 5_000_000))
        consumer.take(Report(counts=Counts(tables={f"table_{number}": note})))
        publishing.took(f"table_{number}", 1.5)

    def count(table: str) -> float | None:
        labels = {"table": table, "stage": "published_to_applied"}
        return registry.get_sample_value("millrace_consumer_stage_seconds_count", labels)

    assert (count("table_0"), count("table_999"), count(OTHER_TABLES)) == (1, None, 1_000 - MOST_TABLES)
    of_others = of_reader.get_sample_value("millrace_reader_publish_seconds_count", {"table": OTHER_TABLES})
    assert of_others == 1_000 - MOST_TABLES
