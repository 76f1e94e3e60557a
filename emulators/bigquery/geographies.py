"""GEOGRAPHY values: well-known text or GeoJSON in, one form of well-known text out.

Source: BigQuery, "Introduction to the Storage Write API" (both formats) and "Geography functions" (ST_GEOGFROMTEXT: two
dimensions, latitudes from -90 to 90). A value is kept as it was written, in one spelling. Checked are its form, its
bounds, that lines have two points and rings are closed; not checked is what needs geometry on a sphere (rings that
cross, their orientation), which BigQuery refuses or corrects. Longitudes beyond 180 degrees, which BigQuery wraps, are
refused.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_TOKEN: Final = re.compile(r"\s*([A-Za-z]+|[(),]|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
_DEPTHS: Final = {
    "POINT": 0,
    "LINESTRING": 1,
    "MULTIPOINT": 1,
    "POLYGON": 2,
    "MULTILINESTRING": 2,
    "MULTIPOLYGON": 3,
}
"""How deep a position lies in the lists of coordinates."""
_COLLECTION: Final = "GEOMETRYCOLLECTION"
_LEAST_POINTS: Final = {"LINESTRING": 2, "MULTILINESTRING": 2, "POLYGON": 4, "MULTIPOLYGON": 4}
_RINGS: Final = ("POLYGON", "MULTIPOLYGON")
_NESTED: Final = 32


def geography_text(value: str) -> str:
    """Return the well-known text of a geography in either format; ValueError for what is none."""
    return _from_geojson(_json(value), 0) if value.lstrip().startswith("{") else _WellKnownText(value).read()


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not GeoJSON: {error}") from error


def _from_geojson(geometry: Any, depth: int) -> str:
    if not isinstance(geometry, Mapping) or depth > _NESTED:
        raise ValueError("not a GeoJSON geometry")
    kind = str(geometry.get("type")).upper()
    if kind == _COLLECTION:
        parts = geometry.get("geometries")
        if not isinstance(parts, list):
            raise ValueError("a GeometryCollection without geometries")
        return _collection([_from_geojson(part, depth + 1) for part in parts])
    if kind not in _DEPTHS:
        raise ValueError(f"not a GeoJSON geometry: {geometry.get('type')}")
    return _text(kind, geometry.get("coordinates"))


class _WellKnownText:
    """A text of one geometry, read token by token."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"not well-known text at {position}")
            self._tokens.append(match[1].upper())
            position = match.end()
        self._tokens.reverse()

    def read(self) -> str:
        text = self._geometry(0)
        if self._tokens:
            raise ValueError("more text after the geometry")
        return text

    def _geometry(self, depth: int) -> str:
        kind = self._next()
        empty = self._skip("EMPTY")
        if kind == _COLLECTION:
            return _collection([] if empty else self._listed(lambda: self._geometry(depth + 1), depth))
        if kind not in _DEPTHS:
            raise ValueError(f"not a geometry: {kind}")
        if empty:
            return _text(kind, [])
        if kind == "POINT":
            self._expect("(")
            position = self._position()
            self._expect(")")
            return _text(kind, position)
        return _text(kind, self._coordinates(_DEPTHS[kind]))

    def _coordinates(self, depth: int) -> Any:
        if depth == 0:
            bracketed = self._skip("(")  # MULTIPOINT((1 2), (3 4))
            position = self._position()
            if bracketed:
                self._expect(")")
            return position
        return self._listed(lambda: self._coordinates(depth - 1), 0)

    def _listed(self, read: Any, depth: int) -> list[Any]:
        if depth > _NESTED:
            raise ValueError("nested too deep")
        self._expect("(")
        found = [read()]
        while self._skip(","):
            found.append(read())
        self._expect(")")
        return found

    def _position(self) -> list[float]:
        numbers: list[float] = []
        while self._tokens and self._tokens[-1] not in ("(", ")", ","):
            numbers.append(float(self._next()))
        if not numbers:
            raise ValueError("a position expected")
        return numbers

    def _next(self) -> str:
        if not self._tokens:
            raise ValueError("the text ends too early")
        return self._tokens.pop()

    def _skip(self, token: str) -> bool:
        found = bool(self._tokens) and self._tokens[-1] == token
        if found:
            self._tokens.pop()
        return found

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise ValueError(f"{token} expected")


def _collection(parts: Sequence[str]) -> str:
    return f"{_COLLECTION}({', '.join(parts)})" if parts else f"{_COLLECTION} EMPTY"


def _text(kind: str, coordinates: Any) -> str:
    if coordinates == []:
        return f"{kind} EMPTY"
    written = _written(kind, coordinates, _DEPTHS[kind])
    return f"{kind}({written})" if kind == "POINT" else f"{kind}{written}"


def _written(kind: str, coordinates: Any, depth: int) -> str:
    if not isinstance(coordinates, list):
        raise ValueError("coordinates expected")  # noqa: TRY004 - it is a value of a row that is wrong
    if depth == 0:
        return _position(coordinates)
    if depth == 1 and kind in _LEAST_POINTS:
        if len(coordinates) < _LEAST_POINTS[kind]:
            raise ValueError(f"a {kind} needs {_LEAST_POINTS[kind]} points in each of its lines")
        if kind in _RINGS and coordinates[0] != coordinates[-1]:
            raise ValueError("a ring that is not closed")
    return f"({', '.join(_written(kind, part, depth - 1) for part in coordinates)})"


def _position(coordinates: Sequence[Any]) -> str:
    if len(coordinates) != 2 or not all(type(n) in (int, float) for n in coordinates):
        raise ValueError("a position is a longitude and a latitude")
    longitude, latitude = coordinates
    if not (math.fabs(longitude) <= 180 and math.fabs(latitude) <= 90):
        raise ValueError(f"out of range: {longitude} {latitude}")
    return f"{_number(longitude)} {_number(latitude)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
