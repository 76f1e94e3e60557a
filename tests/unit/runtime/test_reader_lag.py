"""How far readers are behind grows while nothing can be known of the source."""

import math

from prometheus_client import CollectorRegistry

from shared.runtime.metrics import ReaderLag


def test_the_lag_grows_by_each_second_since_it_was_known_last() -> None:
    seconds, registry = [100.0], CollectorRegistry()
    lag = ReaderLag(registry, lambda: seconds[0])
    unknown = registry.get_sample_value("millrace_reader_lag_seconds") or 0.0
    assert (lag.seconds, math.isnan(unknown)) == (None, True), "0 would say: in time"
    lag.set(0.5)
    seconds[0] += 600
    assert (lag.seconds, registry.get_sample_value("millrace_reader_lag_seconds")) == (600.5, 600.5)
    lag.set(2)
    assert lag.seconds == 2
