"""The demo's two databases in Spanner, one of each dialect: tables, change streams, and a column that comes later.

`flights` (GoogleSQL): airlines, their flights (interleaved), planes and airports. `weather` (PostgreSQL): stations and
their observations. All table names differ, because both are mirrored into one dataset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column that is added while rows are being changed."""

    table: str
    name: str
    type: str

    @property
    def statement(self) -> str:
        """Return the statement that adds it, in either dialect."""
        return f"ALTER TABLE {self.table} ADD COLUMN {self.name} {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoDatabase:
    """A database of the demo as it is made, and what is known of it beforehand."""

    name: str
    change_stream: str
    tables: Sequence[str]
    """The statements that make its tables."""
    watched: str
    """The one that makes its change stream, later: rows that were written before are not in it."""
    keys: Mapping[str, Sequence[str]]
    """Primary keys by table; parents before children, which is the order to load them in."""
    added: AddedColumn
    cascades: Mapping[str, str] = field(default_factory=dict)
    """Parent table -> child table whose rows are deleted with the parent's; its key begins with the parent's."""
    histories: Sequence[str] = ()
    """The tables of which BigQuery keeps every change beside the mirror."""
    postgresql: bool = False

    @property
    def statements(self) -> Sequence[str]:
        """Return all statements that make it."""
        return (*self.tables, self.watched)

    @property
    def whole_rows(self) -> bool:
        """Return whether its change stream captures whole rows; by default one captures only what changed."""
        return "value_capture_type = 'NEW_ROW'" in self.watched

    @property
    def dialect(self) -> str:
        """Return the dialect's name."""
        return "PostgreSQL" if self.postgresql else "GoogleSQL"


_AIRLINES: Final = """
CREATE TABLE airlines (
  carrier STRING(2) NOT NULL,
  name STRING(MAX),
) PRIMARY KEY (carrier)"""

_AIRPORTS: Final = """
CREATE TABLE airports (
  faa STRING(3) NOT NULL,
  name STRING(MAX),
  latitude FLOAT64,
  longitude FLOAT64,
  altitude_feet INT64,
  utc_offset_hours INT64,
  daylight_saving BOOL,
  timezone STRING(MAX),
) PRIMARY KEY (faa)"""

_PLANES: Final = """
CREATE TABLE planes (
  tail_number STRING(6) NOT NULL,
  year INT64,
  type STRING(MAX),
  manufacturer STRING(MAX),
  model STRING(MAX),
  engines INT64,
  seats INT64,
  cruise_speed INT64,
  engine STRING(MAX),
  record_digest BYTES(32),
) PRIMARY KEY (tail_number)"""

_FLIGHTS: Final = """
CREATE TABLE flights (
  carrier STRING(2) NOT NULL,
  flight INT64 NOT NULL,
  flight_date DATE NOT NULL,
  origin STRING(3) NOT NULL,
  destination STRING(3),
  tail_number STRING(6),
  scheduled_departure TIMESTAMP,
  scheduled_arrival TIMESTAMP,
  departure TIMESTAMP,
  arrival TIMESTAMP,
  air_minutes INT64,
  distance_km NUMERIC,
  speed_kmh FLOAT64,
  cancelled BOOL,
  delays JSON,
) PRIMARY KEY (carrier, flight, flight_date, origin),
  INTERLEAVE IN PARENT airlines ON DELETE CASCADE"""

_STATIONS: Final = """
CREATE TABLE stations (
  code varchar(3) NOT NULL PRIMARY KEY,
  name text,
  position jsonb,
  altitude_feet bigint,
  last_observed timestamptz,
  last_temperatures_f numeric[]
)"""

_OBSERVATIONS: Final = """
CREATE TABLE observations (
  station varchar(3) NOT NULL,
  observed_at timestamptz NOT NULL,
  temperature_f numeric,
  dew_point_f numeric,
  precipitation_inches numeric,
  visibility_miles real,
  wind jsonb,
  phenomena varchar[],
  record_digest bytea,
  humidity numeric,
  pressure_hpa double precision,
  PRIMARY KEY (station, observed_at)
)"""

# One stream of the default capture type, OLD_AND_NEW_VALUES: its reader completes the updates. The other captures whole
# rows, as is recommended.
FLIGHTS: Final = DemoDatabase(
    name="flights",
    change_stream="flights_changes",
    tables=(_AIRLINES, _AIRPORTS, _PLANES, _FLIGHTS),
    watched="CREATE CHANGE STREAM flights_changes FOR ALL",
    keys={
        "airlines": ("carrier",),
        "airports": ("faa",),
        "planes": ("tail_number",),
        "flights": ("carrier", "flight", "flight_date", "origin"),
    },
    added=AddedColumn("flights", "aircraft", "STRING(MAX)"),
    cascades={"airlines": "flights"},
    histories=("flights",),
)
WEATHER: Final = DemoDatabase(
    name="weather",
    change_stream="weather_changes",
    tables=(_STATIONS, _OBSERVATIONS),
    watched="CREATE CHANGE STREAM weather_changes FOR ALL WITH (value_capture_type = 'NEW_ROW')",
    keys={"stations": ("code",), "observations": ("station", "observed_at")},
    added=AddedColumn("observations", "temperature_c", "numeric"),
    postgresql=True,
)
KEYS: Final[Mapping[str, Sequence[str]]] = {**FLIGHTS.keys, **WEATHER.keys}
"""The primary keys of all tables."""
