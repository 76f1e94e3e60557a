"""The demo's tables in Spanner: airlines, their flights (interleaved), planes and airports, and the change stream."""

from typing import Final

CHANGE_STREAM: Final = "demo_changes"
TABLES: Final = ("airlines", "airports", "planes", "flights")
"""Parents before children: the order to load them in."""

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

# Whole rows: an upsert replaces the row in BigQuery, so it needs all of it.
_STREAM: Final = f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')"

STATEMENTS: Final = (_AIRLINES, _AIRPORTS, _PLANES, _FLIGHTS, _STREAM)

KEYS: Final = {
    "airlines": ("carrier",),
    "airports": ("faa",),
    "planes": ("tail_number",),
    "flights": ("carrier", "flight", "flight_date", "origin"),
}
