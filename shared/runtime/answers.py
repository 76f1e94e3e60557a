"""What a command answers on standard output."""

from collections.abc import Iterable
from typing import TextIO

import msgspec


def json_text(document: object) -> str:
    """Return a document as JSON, to be read by people, too."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def print_answer(document: object, lines: Iterable[str], as_json: bool, out: TextIO) -> None:
    """Write an answer as one JSON document, or as its lines."""
    out.writelines([json_text(document)] if as_json else (f"{line}\n" for line in lines))
