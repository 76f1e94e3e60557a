"""`docs/reference/error-messages.md`: every message of a `MisconfiguredError`, from the code that raises it.

A part of a message that depends on the case is an ellipsis. A message in a variable, or in a function of the module, is
taken from there.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = "reference/error-messages.md"
ROOT: Final = Path(__file__).resolve().parents[2]

_VARIES: Final = "\N{HORIZONTAL ELLIPSIS}"
_ERRORS: Final = frozenset({"MisconfiguredError", "MessagesLostError"})
_FEWEST_WORDS: Final = 3
"""What has fewer fixed words passes on what a library reported."""

_SECTIONS: Final[Mapping[str, str]] = {
    "spanner_reader": "services/spanner_reader",
    "bigtable_reader": "services/bigtable_reader",
    "cdc_consumer": "services/cdc_consumer",
    "dead_letter": "services/dead_letter",
    "All services": "shared",
}
_HEAD: Final = f"""# Error messages

<!-- Made from the code by `make docs`; a test fails where they differ. Change the messages, not this file. -->

Every message of a service or a command that ends with exit code 2. Search this page for the words that you see.
`{_VARIES}` stands for a name, a number or the words of a library. Each message names its fix. [Errors](errors.md)
explains the most frequent ones.
"""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def text() -> str:
    """Return the whole document."""
    parts = [_HEAD]
    for title, folder in _SECTIONS.items():
        messages = sorted({message for file in _files(folder) for message in _messages(file)}, key=str.lower)
        parts += [f"## {title}\n", *(f"- `` {message} ``" for message in messages), ""]
    return "\n".join(parts)


@cache
def fixed_texts() -> frozenset[str]:
    """Return the fixed words of all texts in the code; of a text with variable parts, what is between them."""
    files = [file for part in ("services", "shared", "deploy") for file in _files(part)]
    texts = [written for file in files for node in ast.walk(_tree(file)) for written in _texts(node, {})]
    return frozenset(part for written in texts for part in written.split(_VARIES) if part)


def _files(folder: str) -> Iterable[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _messages(file: Path) -> Iterator[str]:
    tree = _tree(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    returned = {one.name: [node.value for node in ast.walk(one) if isinstance(node, ast.Return)] for one in functions}
    for scope in (tree, *functions):
        held = dict(returned)
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                held.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ERRORS and node.args:
                for message in _texts(node.args[0], held):
                    shown = " ".join(message.split())
                    if len(re.findall(r"[a-z]{2,}", shown)) >= _FEWEST_WORDS:
                        yield shown


def _texts(node: ast.expr | ast.AST | None, held: Mapping[str, list[ast.expr | None]]) -> list[str]:
    """Return what an expression may be as a text; nothing where it is none."""
    match node:
        case ast.Constant(value=str(value)):
            return [value]
        case ast.JoinedStr(values=values):
            parts = [str(part.value) if isinstance(part, ast.Constant) else _VARIES for part in values]
            return ["".join(parts)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in _texts(left, held) or [_VARIES] for b in _texts(right, held) or [_VARIES]]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body, held), *_texts(orelse, held)]
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return [written for value in held.get(name, []) for written in _texts(value, {})]
        case _:
            return []
