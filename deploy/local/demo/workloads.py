"""What happens to the sources of the demo: to the databases of `creation.DATABASES`, and to the tables beside."""

from typing import Final

from deploy.local.demo.flights import read_flight_data
from deploy.local.demo.flights_workload import FlightsWorkload
from deploy.local.demo.weather import read_weather_data
from deploy.local.demo.weather_workload import WeatherWorkload
from deploy.local.demo.wide_workload import WideWorkload, read_departures, read_hours

_FLIGHTS_AN_OBSERVATION: Final = 10


def workloads(rows: int, changes: int = 0, seed: int = 2013) -> tuple[FlightsWorkload, WeatherWorkload]:
    """Return the workloads with so many flights to load, and data for so many changes after that."""
    observations = max(3, rows // _FLIGHTS_AN_OBSERVATION)
    return (
        FlightsWorkload(read_flight_data(rows + changes // 3 + 100), rows, seed),
        WeatherWorkload(read_weather_data(observations + changes // 3), observations, seed),
    )


def wide_workload(rows: int, changes: int = 0, seed: int = 2013) -> WideWorkload:
    """Return the workload of the tables in Bigtable: a tenth as many hours, and flights that count, are loaded."""
    loaded = max(3, rows // _FLIGHTS_AN_OBSERVATION)
    return WideWorkload(read_hours(loaded + changes // 2), read_departures(loaded + changes), loaded, seed)
