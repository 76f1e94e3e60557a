"""NUMERIC and BIGNUMERIC: exact decimal numbers from what a writer or a statement gives, and back to text.

Sources: GoogleSQL, "Data types", section "Decimal types" (precision, scale and bounds); java-bigquerystorage,
BigDecimalByteStringEncoder (units of the last digit, little-endian two's complement).
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

BIGNUMERIC_OF: Final = "bignumeric_of"
"""The function, in DuckDB, that makes a BIGNUMERIC of a number's text."""

_TEXT: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_SORTED_BYTES: Final = 32
_OFFSET: Final = 1 << (8 * _SORTED_BYTES - 1)


@dataclass(frozen=True)
class DecimalType:
    """How many digits after the point there are, the least and the greatest number of units, and the bytes of one."""

    scale: int
    least: int
    greatest: int
    size: int

    def units(self, value: object, *, rounded: bool = False) -> int:
        """Return a value in units of the last digit; ValueError for what is no number, too large or too exact.

        A float is rounded, half away from zero, as a cast is; other text must be exact, unless it is cast.
        """
        if isinstance(value, bytes):
            if len(value) > self.size:
                raise ValueError(f"more than {self.size} bytes")
            return self._in_range(int.from_bytes(value, "little", signed=True))
        text = repr(value) if isinstance(value, float) else str(value)
        if _TEXT.fullmatch(text) is None:
            raise ValueError("not a number")
        numerator, denominator = Decimal(text).as_integer_ratio()
        units, rest = divmod(abs(numerator) * 10**self.scale, denominator)
        if rest and not (rounded or isinstance(value, float)):
            raise ValueError(f"more than {self.scale} digits after the decimal point")
        units += 2 * rest >= denominator
        return self._in_range(-units if numerator < 0 else units)

    def _in_range(self, units: int) -> int:
        if not self.least <= units <= self.greatest:
            raise ValueError("out of range")
        return units


NUMERIC: Final = DecimalType(9, 1 - 10**38, 10**38 - 1, 16)
BIGNUMERIC: Final = DecimalType(38, -(1 << 255), (1 << 255) - 1, 32)


def sortable(units: int) -> bytes:
    """Return the units of a BIGNUMERIC as bytes that sort as the numbers do."""
    return (units + _OFFSET).to_bytes(_SORTED_BYTES, "big")


def bignumeric_text(sorted_bytes: bytes) -> str:
    """Return a BIGNUMERIC as the API writes it: no exponent, no zeros at the end."""
    units = int.from_bytes(sorted_bytes, "big") - _OFFSET
    whole, fraction = divmod(abs(units), 10**BIGNUMERIC.scale)
    digits = f"{fraction:0{BIGNUMERIC.scale}}".rstrip("0")
    return f"{'-' if units < 0 else ''}{whole}{'.' if digits else ''}{digits}"
