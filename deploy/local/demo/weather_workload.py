"""What happens to the weather: hours that are not loaded yet are reported, with their station's row, and measured.

Between that, observations are corrected several times in successive transactions, deleted and inserted again, and
replaced.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

from deploy.local.demo.schema import WEATHER
from deploy.local.demo.weather import Observation, WeatherData, celsius
from deploy.local.demo.workload import Story, Workload
from deploy.local.platform.source import Row, Value, Write

_REMEMBERED: Final = 3


class WeatherWorkload(Workload):
    """The changes of one run to the stations and their observations."""

    def __init__(self, data: WeatherData, loaded: int, seed: int = 2013, before: int = 0) -> None:
        """Begin with the stations and so many observations ``before`` the change stream, and load more."""
        observations = [one.row for one in data.observations[: before + loaded]]
        super().__init__(
            WEATHER,
            {"stations": data.stations if before else (), "observations": observations[:before]},
            {"stations": () if before else data.stations, "observations": observations[before:]},
            seed,
        )
        hours = groupby(data.observations[before + loaded :], lambda one: one.row["observed_at"])
        self._coming = deque(list(hour) for _, hour in hours)
        self._last_temperatures: defaultdict[Value, deque[Value]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def _next_story(self) -> Story:
        if self._coming and self._random.random() < 0.6:
            return self._observe(self._coming.popleft())
        return self._random.choice((self._correct, self._withdraw, self._replace_observation))()

    def _value_of_added_column(self, row: Row) -> Value:
        return celsius(row["temperature_f"])

    def _observe(self, observations: Sequence[Observation]) -> Story:
        """Report an hour at every station, the stations' rows in the same transaction; the rest is measured later."""
        yield [
            write
            for one in observations
            for write in (
                Write("insert", "observations", self._with_added("observations", one.reported)),
                self._update("stations", {"code": one.reported["station"]}, self._last(one.reported)),
            )
        ]
        yield [write for one in observations for write in self._if_there("observations", one.reported, one.measured)]

    def _last(self, row: Row) -> Row:
        """Return the last observations as a station's row holds them; a measurement that failed is none of them."""
        last = self._last_temperatures[row["station"]]
        if row["temperature_f"] is not None:
            last.append(row["temperature_f"])
        observed = row["observed_at"]
        assert isinstance(observed, datetime)
        return {"last_observed": observed, "last_temperatures_f": tuple(last)}

    def _correct(self) -> Story:
        """Correct the wind of one observation again and again."""
        speeds = self._random.sample(range(1, 60), self._random.randint(2, 5))
        row = dict(self._any("observations"))
        return self._change_for_a_while("observations", row, "wind", [{"speed_mph": speed} for speed in speeds])

    def _withdraw(self) -> Story:
        """Delete an observation and insert it again, twice."""
        return self._delete_and_insert_again("observations", self._any("observations"))

    def _replace_observation(self) -> Story:
        """Replace a whole observation, leaving columns out."""
        return self._replace("observations", self._any("observations"), "record_digest", "phenomena", "humidity")
