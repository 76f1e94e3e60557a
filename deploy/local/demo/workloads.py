"""What happens to the sources of the demo: to the databases of `creation.DATABASES`, and to the tables beside."""

from typing import Final

from deploy.local.demo.flights import read_flight_data
from deploy.local.demo.flights_workload import FlightsWorkload
from deploy.local.demo.weather import read_weather_data
from deploy.local.demo.weather_workload import WeatherWorkload
from deploy.local.demo.wide_workload import WideWorkload, read_departures, read_hours

_FLIGHTS_AN_OBSERVATION: Final = 10


def workloads(
    rows: int, changes: int = 0, seed: int = 2013, before: int = 0
) -> tuple[FlightsWorkload, WeatherWorkload]:
    """Return the workloads: so many flights from before the change stream, so many to load, and data for changes.

    Of observations of the weather there are a tenth as many.
    """
    earlier, observations = (max(3, flights // _FLIGHTS_AN_OBSERVATION) if flights else 0 for flights in (before, rows))
    return (
        FlightsWorkload(read_flight_data(before + rows + changes // 3 + 100), rows, seed, before),
        WeatherWorkload(read_weather_data(earlier + observations + changes // 3), observations, seed, earlier),
    )


def wide_workload(rows: int, changes: int = 0, seed: int = 2013, before: int = 0) -> WideWorkload:
    """Return the workload of the tables in Bigtable: a tenth as many hours, and flights that count."""
    earlier, loaded = before // _FLIGHTS_AN_OBSERVATION, max(3, rows // _FLIGHTS_AN_OBSERVATION)
    departures = read_departures(earlier + loaded + changes)
    return WideWorkload(read_hours(loaded + changes // 2), departures, loaded, seed, earlier)
