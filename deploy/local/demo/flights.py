"""Real data: every flight from New York City in 2013, with the airlines, airports and planes, as rows of the demo."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import islice
from typing import Final

from deploy.local.demo.package_data import known, lines_of
from deploy.local.platform.source import Row, Value

_KM_PER_MILE: Final = Decimal("1.609344")
_SUMMER_TIME: Final = (date(2013, 3, 10), date(2013, 11, 3))
# Destinations that the list of airports leaves out: Puerto Rico and the Virgin Islands, without summer time.
_ATLANTIC: Final = {"SJU": (-4, False), "BQN": (-4, False), "STT": (-4, False), "PSE": (-4, False)}


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight: its row as it was scheduled, and what was known of it later."""

    scheduled: Row
    departed: Row
    arrived: Row

    @property
    def row(self) -> Row:
        """Return the row as it was in the end."""
        return {**self.scheduled, **self.departed, **self.arrived}


@dataclass(frozen=True, slots=True)
class FlightData:
    """The demo's data: small tables whole, flights in the order of the file (by day and departure)."""

    airlines: list[Row]
    airports: list[Row]
    planes: list[Row]
    flights: list[Flight]


def read_flight_data(number_of_flights: int) -> FlightData:
    """Return the small tables whole and the first flights of the year; MisconfiguredError without the package."""
    airports = [_airport(line) for line in lines_of("airports.csv")]
    clocks = {str(row["faa"]): (row["utc_offset_hours"], row["daylight_saving"]) for row in airports} | _ATLANTIC
    return FlightData(
        airlines=[{"carrier": line["carrier"], "name": line["name"]} for line in lines_of("airlines.csv")],
        airports=airports,
        planes=[_plane(line) for line in lines_of("planes.csv")],
        flights=[_flight(line, clocks) for line in islice(lines_of("flights.csv.zip"), number_of_flights)],
    )


def _airport(line: Mapping[str, str]) -> Row:
    return {
        "faa": line["faa"],
        "name": line["name"],
        "latitude": float(line["lat"]),
        "longitude": float(line["lon"]),
        "altitude_feet": int(line["alt"]),
        "utc_offset_hours": int(line["tz"]),
        "daylight_saving": {"A": True, "N": False}.get(line["dst"]),
        "timezone": known(line["tzone"], str),
    }


def _plane(line: Mapping[str, str]) -> Row:
    return {
        "tail_number": line["tailnum"],
        "year": known(line["year"], int),
        "type": line["type"],
        "manufacturer": line["manufacturer"],
        "model": line["model"],
        "engines": int(line["engines"]),
        "seats": int(line["seats"]),
        "cruise_speed": known(line["speed"], int),
        "engine": line["engine"],
        "record_digest": hashlib.sha256(",".join(line.values()).encode()).digest(),
    }


def _flight(line: Mapping[str, str], clocks: Mapping[str, tuple[Value, Value]]) -> Flight:
    day = date(int(line["year"]), int(line["month"]), int(line["day"]))
    hour = datetime.strptime(line["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    planned = hour + timedelta(minutes=int(line["minute"]))
    due = _arrival_due(planned, line["sched_arr_time"], clocks[line["dest"]], day)
    late, arrival_late = known(line["dep_delay"], int), known(line["arr_delay"], int)
    minutes = known(line["air_time"], int)
    distance = int(line["distance"]) * _KM_PER_MILE
    scheduled: Row = {
        "carrier": line["carrier"],
        "flight": int(line["flight"]),
        "flight_date": day,
        "origin": line["origin"],
        "destination": line["dest"],
        "tail_number": known(line["tailnum"], str),
        "scheduled_departure": planned,
        "scheduled_arrival": due,
        "departure": None,
        "arrival": None,
        "air_minutes": None,
        "distance_km": distance,
        "speed_kmh": None,
        "cancelled": False,
        "delays": None,
    }
    departed: Row = {"cancelled": True}
    if late is not None:
        departed = {"departure": planned + timedelta(minutes=late), "delays": {"departure": late}}
    arrived: Row = {}
    if late is not None and arrival_late is not None and minutes is not None:
        arrived = {
            "arrival": due + timedelta(minutes=arrival_late),
            "air_minutes": minutes,
            "speed_kmh": float(distance) / minutes * 60,
            "delays": {"departure": late, "arrival": arrival_late, "made_up": late > arrival_late},
        }
    return Flight(scheduled, departed, arrived)


def _arrival_due(planned: datetime, wall_clock: str, clock: tuple[Value, Value], day: date) -> datetime:
    """Return the first moment after the planned departure at which the destination's clocks show this time."""
    offset, daylight_saving = clock
    assert isinstance(offset, int)
    summer = bool(daylight_saving) and _SUMMER_TIME[0] <= day < _SUMMER_TIME[1]
    zone = timezone(timedelta(hours=offset + summer))
    hour, minute = divmod(int(wall_clock), 100)
    local = planned.astimezone(zone).replace(hour=hour % 24, minute=minute)
    return (local if local > planned else local + timedelta(days=1)).astimezone(UTC)
