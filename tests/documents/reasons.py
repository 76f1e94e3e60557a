"""The table of reasons in `docs/reference/dead-letters.md`: each code, what it means, and what to do."""

import ast
from itertools import pairwise
from pathlib import Path
from typing import Final

from services.dead_letter.core.guidance import GUIDANCE
from shared.contracts import reasons
from shared.contracts.reasons import Reason

FILE: Final = "reference/dead-letters.md"
_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / FILE
_BEGIN: Final = "<!-- Made from the code by `make docs`, down to the end of the table. -->\n"
_END: Final = "<!-- The end of the table. -->\n"


def text() -> str:
    """Return the document: what people have written, with the table of now."""
    before, _begin, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _table, _end, after = rest.partition(_END)
    rows = [f"| [`{one.value}`](#{one.value}) | {_meanings()[one.name]} | {GUIDANCE[one]} |" for one in Reason]
    return "\n".join([f"{before}{_BEGIN}", "| Code | Means | Do |", "|---|---|---|", *rows, "", f"{_END}{after}"])


def _meanings() -> dict[str, str]:
    """Return the first paragraph of what is written below each reason."""
    assert reasons.__file__ is not None
    tree = ast.parse(Path(reasons.__file__).read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    found: dict[str, str] = {}
    for one, below in pairwise(body):
        match one, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.partition("\n\n")[0].split())
            case _:
                pass
    return found
