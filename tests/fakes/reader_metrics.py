"""The readers' own metrics, of which a test sees what they show."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from prometheus_client import CollectorRegistry

from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.schema.shapes import SpannerResyncRequest
from shared.contracts.timestamps import Nanoseconds
from shared.reading.metrics import ReaderMetrics
from tests.fakes.bigtable_table import VirtualClock


class Shown:
    """What metrics show."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def values(self, name: str) -> Mapping[str, float]:
        """Return the values of a metric by its only label, or by "" where it has none."""
        samples = (sample for metric in self.registry.collect() for sample in metric.samples)
        return {"".join(one.labels.values()): one.value for one in samples if one.name == f"millrace_{name}"}

    def value(self, name: str) -> float:
        """Return the value of a metric without labels."""
        found = self.registry.get_sample_value(f"millrace_{name}")
        assert found is not None, f"there is no metric {name}"
        return found


class AnyMetrics(Shown, ReaderMetrics):
    """The metrics of any reader."""

    def __init__(self) -> None:
        Shown.__init__(self)
        ReaderMetrics.__init__(self, self.registry, "//source")


class SpannerMetrics(Shown, SpannerReaderMetrics):
    """The metrics of a Spanner reader, and times and resync requests as they were handed over."""

    low_watermark: Nanoseconds | None = None
    now: Nanoseconds | None = None
    requests: Sequence[SpannerResyncRequest] = ()

    def __init__(self) -> None:
        Shown.__init__(self)
        SpannerReaderMetrics.__init__(self, self.registry, "//spanner/s")

    @property
    def completed_changes(self) -> tuple[int, int]:
        """Return how many changes were completed from rows of then, and from rows of now."""
        return int(self.value("reader_completed_changes_total")), int(self.value("reader_reconstructed_changes_total"))

    def set_pending_resync(self, requests: Sequence[SpannerResyncRequest], quote: str) -> None:
        """Show and remember which tables are pending resync."""
        super().set_pending_resync(requests, quote)
        self.requests = requests

    def surveyed(self, states: Mapping[str, int], low_watermark: Nanoseconds, now: Nanoseconds) -> None:
        """Show and remember how far all partitions have come."""
        super().surveyed(states, low_watermark, now)
        self.low_watermark, self.now = low_watermark, now


class BigtableMetrics(Shown, BigtableReaderMetrics):
    """The metrics of a Bigtable reader."""

    def __init__(self) -> None:
        Shown.__init__(self)
        BigtableReaderMetrics.__init__(self, self.registry, "//bigtable/t", VirtualClock())

    @property
    def stalled_for(self) -> timedelta:
        """Return how long the low watermark has stood still."""
        return timedelta(seconds=self.value("reader_low_watermark_stalled_seconds"))
