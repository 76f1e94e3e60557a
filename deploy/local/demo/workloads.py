"""What happens to both databases of the demo, in the order of `stack.DATABASES`."""

from typing import Final

from deploy.local.demo.flights import read_flight_data
from deploy.local.demo.flights_workload import FlightsWorkload
from deploy.local.demo.weather import read_weather_data
from deploy.local.demo.weather_workload import WeatherWorkload

_FLIGHTS_AN_OBSERVATION: Final = 10


def workloads(rows: int, changes: int = 0, seed: int = 2013) -> tuple[FlightsWorkload, WeatherWorkload]:
    """Return the workloads with so many flights to load, and data for so many changes after that."""
    observations = max(3, rows // _FLIGHTS_AN_OBSERVATION)
    return (
        FlightsWorkload(read_flight_data(rows + changes // 3 + 100), rows, seed),
        WeatherWorkload(read_weather_data(observations + changes // 3), observations, seed),
    )
