"""The change sequence number: which change of a row is newest, as BigQuery's change data capture compares it.

Source of the grammar and the order: BigQuery, "Stream table updates with change data capture", section
"Manage custom ordering": one to four sections of at most 16 hexadecimal digits, joined by ``/``, compared section by
section as unsigned numbers. The document leaves open how ``A`` compares with ``A/0``; ours always have four sections.
"""

import re
from dataclasses import dataclass
from typing import Final

_GRAMMAR: Final = re.compile(r"[0-9A-Fa-f]{1,16}(?:/[0-9A-Fa-f]{1,16}){0,3}", re.ASCII)
_SECTION_LIMIT: Final = 1 << 64


@dataclass(frozen=True, slots=True, order=True)
class ChangeSequenceNumber:
    """One to four unsigned 64-bit sections, most significant first; larger is newer."""

    sections: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.sections) <= 4:
            raise ValueError(f"a change sequence number has 1 to 4 sections, not {len(self.sections)}")
        for section in self.sections:
            if not 0 <= section < _SECTION_LIMIT:
                raise ValueError(f"section {section} does not fit into 16 hexadecimal digits")

    def __str__(self) -> str:
        """Return our one text form: every section as 16 upper-case digits, so that texts of equal length sort alike."""
        return "/".join(f"{section:016X}" for section in self.sections)


def four_sections(first: int, second: int = 0, third: int = 0, revision: int = 0) -> ChangeSequenceNumber:
    """Make the number that Millrace writes: always four sections; the last is the revision, 0 from the source."""
    return ChangeSequenceNumber((first, second, third, revision))


def parse_sequence(text: str) -> ChangeSequenceNumber:
    """Return the number that a text in BigQuery's grammar means; ValueError for anything else."""
    if _GRAMMAR.fullmatch(text) is None:
        raise ValueError(
            f"not a change sequence number: {text!r} (1 to 4 sections of 1 to 16 hexadecimal digits, joined by '/')"
        )
    return ChangeSequenceNumber(tuple(int(section, 16) for section in text.split("/")))
