"""The demo's two tables in Bigtable, and their part of the tables file.

`hourly_weather`: time series, a row for every hour at every station, the latest hour first; corrections of what was
observed are kept with the times they were made. `airport_traffic`: counters, a row for every hour at every airport.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deploy.local.platform.bigtable import BigtableTable


@dataclass(frozen=True, slots=True)
class CellColumn:
    """A column of the mirror that holds the newest value of one cell."""

    name: str
    family: str
    qualifier: bytes
    type: str
    """FLOAT64, written as text; or INT64, a counter."""
    timestamp: str | None = None
    """The column that holds the time of the cell."""

    @property
    def options(self) -> str:
        """Return its section of the tables file, without the heading."""
        encoding = "big_endian" if self.type == "INT64" else "text"
        at = "" if self.timestamp is None else f'timestamp = "{self.timestamp}"\n'
        cell = f"{self.family}:{self.qualifier.decode()}"
        return f'cell = "{cell}"\ntype = "{self.type}"\nencoding = "{encoding}"\n{at}'


@dataclass(frozen=True, slots=True, kw_only=True)
class WideTable:
    """A table of the demo in Bigtable."""

    name: str
    families: Mapping[str, int]
    """How many versions of a cell each family keeps; 0: all of them."""
    columns: tuple[CellColumn, ...]
    values: str
    """How the values of the cells that have no column of their own are written: text or base64."""
    versions: int = 1
    """How many versions of those cells the mirror has."""
    cell_timestamps: bool = False
    change_log: bool = False
    """Whether BigQuery has every change, too."""

    @property
    def with_timestamps(self) -> bool:
        """Return whether the values in a family's JSON have their times beside them."""
        return self.cell_timestamps or self.versions > 1

    @property
    def options(self) -> str:
        """Return its sections of the tables file."""
        lines = [
            f'[tables."{self.name}"]',
            f'mode = "{"both" if self.change_log else "mirror"}"',
            f'values = "{self.values}"',
            f"versions = {self.versions}",
            f"cell_timestamps = {str(self.cell_timestamps).lower()}",
        ]
        sections = [f'[tables."{self.name}".columns.{column.name}]\n{column.options}' for column in self.columns]
        return "\n".join([*lines, "", *sections])

    @property
    def table(self) -> BigtableTable:
        """Return the table as it is to be made."""
        return BigtableTable(self.name, self.families)


OBSERVED: Final = "observed"
CORRECTED: Final = "corrected"
TOTALS: Final = "totals"
CARRIERS: Final = "carriers"

HOURLY_WEATHER: Final = WideTable(
    name="hourly_weather",
    families={OBSERVED: 0, CORRECTED: 0},
    columns=(
        CellColumn("temperature_f", OBSERVED, b"temp", "FLOAT64", timestamp="observed_at"),
        CellColumn("humidity", OBSERVED, b"humid", "FLOAT64"),
    ),
    values="text",
    versions=3,
    cell_timestamps=True,
    change_log=True,
)
AIRPORT_TRAFFIC: Final = WideTable(
    name="airport_traffic",
    families={TOTALS: 1, CARRIERS: 1},
    columns=(
        CellColumn("departures", TOTALS, b"departures", "INT64"),
        CellColumn("minutes_late", TOTALS, b"minutes_late", "INT64"),
    ),
    values="base64",
)
WIDE_TABLES: Final = (HOURLY_WEATHER, AIRPORT_TRAFFIC)
