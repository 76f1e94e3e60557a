"""Real data: the weather at the three airports of New York City, hour by hour, as rows of the demo.

Observations in the order of their time. What is measured with decimals is a number of PostgreSQL's `numeric`, which
travels as the text that the file has.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Final

from deploy.local.demo.package_data import known, lines_of
from deploy.local.platform.source import Row

_MEASURED_LATER: Final = ("humidity", "pressure_hpa")
_HUNDREDTH: Final = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Observation:
    """One hour at one airport: the row as it is first reported, and what is measured later."""

    reported: Row
    measured: Row

    @property
    def row(self) -> Row:
        """Return the row as it was in the end."""
        return {**self.reported, **self.measured}


@dataclass(frozen=True, slots=True)
class WeatherData:
    """The stations, and their observations in the order of their time."""

    stations: list[Row]
    observations: list[Observation]


def read_weather_data(number_of_observations: int) -> WeatherData:
    """Return the stations and the first observations of the year; MisconfiguredError without the package."""
    lines = sorted(lines_of("weather.csv"), key=lambda line: (line["time_hour"], line["origin"]))
    airports = {line["faa"]: line for line in lines_of("airports.csv")}
    return WeatherData(
        stations=[_station(airports[code]) for code in sorted({line["origin"] for line in lines})],
        observations=[_observation(line) for line in islice(lines, number_of_observations)],
    )


def celsius(fahrenheit: object) -> str | None:
    """Return a temperature in degrees Celsius, as the text of a `numeric`."""
    if fahrenheit is None:
        return None
    return str(((Decimal(str(fahrenheit)) - 32) * 5 / 9).quantize(_HUNDREDTH))


def _station(line: Mapping[str, str]) -> Row:
    return {
        "code": line["faa"],
        "name": line["name"],
        "position": {"latitude": float(line["lat"]), "longitude": float(line["lon"])},
        "altitude_feet": int(line["alt"]),
        "last_observed": None,
        "last_temperatures_f": (),
    }


def _observation(line: Mapping[str, str]) -> Observation:
    wind = {
        "direction": known(line["wind_dir"], int),
        "speed_mph": known(line["wind_speed"], float),
        "gust_mph": known(line["wind_gust"], float),
    }
    row: Row = {
        "station": line["origin"],
        "observed_at": datetime.strptime(line["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC),
        "temperature_f": known(line["temp"], str),
        "dew_point_f": known(line["dewp"], str),
        "precipitation_inches": known(line["precip"], str),
        "visibility_miles": known(line["visib"], _real),
        "wind": wind if any(wind.values()) else None,
        "phenomena": _phenomena(line),
        "record_digest": hashlib.sha256(",".join(line.values()).encode()).digest(),
    }
    measured: Row = {"humidity": known(line["humid"], str), "pressure_hpa": known(line["pressure"], float)}
    return Observation({**row, **dict.fromkeys(_MEASURED_LATER)}, measured)


def _phenomena(line: Mapping[str, str]) -> tuple[str, ...]:
    seen = {
        "precipitation": float(line["precip"]) > 0,
        "low visibility": float(line["visib"]) < 3,
        "gusts": line["wind_gust"] != "NA",
    }
    return tuple(name for name, true in seen.items() if true)


def _real(text: str) -> float:
    """Return the number of 32 bits that is meant."""
    (number,) = struct.unpack("f", struct.pack("f", float(text)))
    return float(number)
