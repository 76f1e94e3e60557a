"""How long a query counts as alive: while it waits for messages, and while executors are awaited."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.spark.spark_session import PythonLateError, QueryFailedError
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.service import wait_for_slots, watch
from shared.contracts.errors import MisconfiguredError
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.world import NEEDED

LIVENESS = timedelta(minutes=15)


class Query:
    """A streaming query of Spark's in a micro-batch that does not end, for so many looks."""

    def __init__(self, polls: int, *, available: bool, failure: Exception | None = None) -> None:
        self._polls = polls
        self._failure = failure
        self.stopped = False
        self.lastProgress: object = None
        self.status: dict[str, Any] = {"isDataAvailable": available, "message": "Processing new data"}

    @property
    def isActive(self) -> bool:  # noqa: N802
        self._polls -= 1
        return self._polls > 0 and not self.stopped

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self.stopped = True


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


@pytest.mark.parametrize(("available", "lives"), [(True, False), (False, True)])
def test_a_micro_batch_that_reports_nothing_for_long_is_not_alive(available: bool, lives: bool, tmp_path: Path) -> None:
    query: Any = Query(2 * LIVENESS // timedelta(milliseconds=200), available=available)
    stop = Passing()
    watch(query, stop.health, stop, lambda: None, tmp_path / "drained", may_end=True)

    assert stop.seconds > LIVENESS.total_seconds()
    assert (all(stop.alive), stop.alive[-1]) == (lives, lives)


def test_when_a_query_has_failed_its_other_tasks_hear_of_it(tmp_path: Path) -> None:
    query: Any = Query(0, available=True, failure=RuntimeError("lost"))
    stop, calls = Passing(), []
    with pytest.raises(QueryFailedError, match="lost"):
        watch(query, stop.health, stop, lambda: calls.append("stop"), tmp_path / "drained", may_end=False)

    assert calls == ["stop"]


LATE = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark.api.python..."


@pytest.mark.parametrize(
    ("progress", "raises", "told"),
    [(None, PythonLateError, []), ({"batchId": 0}, QueryFailedError, ["stop"])],
)
def test_a_query_whose_python_process_is_late_can_start_again_unless_it_was_at_work(
    progress: object, raises: type[Exception], told: list[str], tmp_path: Path
) -> None:
    query: Any = Query(2, available=True, failure=RuntimeError(LATE))
    query.lastProgress = progress
    stop, calls = Passing(), []
    with pytest.raises(raises, match="Python worker failed to connect back"):
        watch(query, stop.health, stop, lambda: calls.append("stop"), tmp_path / "drained", may_end=False)

    assert calls == told


def test_a_query_that_does_not_end_by_itself_is_ended_once_the_subscription_is_drained(tmp_path: Path) -> None:
    query: Any = Query(9, available=False)
    drained = tmp_path / "drained"
    drained.touch()
    with capture_logs() as logs:
        watch(query, Passing().health, Passing(), lambda: None, drained, may_end=True)

    assert query.stopped
    assert [one["event"] for one in logs] == ["subscription_drained"]


def on_a_cluster(tasks: int) -> Settings:
    return read_settings(Settings, NEEDED | {"SPARK_MASTER": "spark://h:1", "TASKS": f"{tasks}"})


def test_executors_for_all_tasks_are_awaited_alive() -> None:
    stop, there = Passing(), iter([0, *[2] * 9_000, 4])

    assert wait_for_slots(lambda: next(there), on_a_cluster(4), stop.health, stop, within=2 * LIVENESS)
    assert stop.seconds > LIVENESS.total_seconds()
    assert all(stop.alive)


def test_tasks_for_which_no_executors_come_are_refused() -> None:
    stop = Passing()
    with pytest.raises(MisconfiguredError, match="TASKS=4 is more than the 3 that SPARK_MASTER=spark://h:1 can run"):
        wait_for_slots(lambda: 3, on_a_cluster(4), stop.health, stop, within=timedelta(0))


def test_a_stop_ends_the_wait_for_executors() -> None:
    stop = Stop()
    stop.request()

    assert not wait_for_slots(lambda: 3, on_a_cluster(4), Health(LIVENESS), stop)
