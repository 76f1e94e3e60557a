"""How long a query counts as alive: while it waits for messages, and while what cannot say so is at work."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from services.cdc_consumer.wiring.service import watch
from shared.runtime.health import Health
from shared.runtime.stop import Stop

LIVENESS = timedelta(minutes=15)


class Query:
    """A streaming query of Spark's in a micro-batch that does not end, for so many looks."""

    def __init__(self, looks: int, *, available: bool) -> None:
        self._looks = looks
        self.status: dict[str, Any] = {"isDataAvailable": available, "message": "Processing new data"}

    @property
    def isActive(self) -> bool:  # noqa: N802
        self._looks -= 1
        return self._looks > 0

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        pass


class Passing(Stop):
    """Time passes where it is waited for, by which is noted whether all is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.health = Health(LIVENESS, now=lambda: self.seconds)
        self.alive: list[bool] = []

    def wait(self, timeout: timedelta) -> bool:
        self.seconds += timeout.total_seconds()
        self.alive.append(self.health.alive)
        return False


@pytest.mark.parametrize(
    ("available", "works", "lives"), [(True, True, True), (True, False, False), (False, False, True)]
)
def test_a_micro_batch_that_reports_nothing_is_alive_while_spark_has_a_task_at_work(
    tmp_path: Path, available: bool, works: bool, lives: bool
) -> None:
    query: Any = Query(2 * LIVENESS // timedelta(milliseconds=200), available=available)
    stop = Passing()
    watch(query, stop.health, stop, tmp_path / "stop", lambda: works, may_end=True)

    assert stop.seconds > LIVENESS.total_seconds()
    assert (all(stop.alive), stop.alive[-1]) == (lives, lives)
