"""Find the fixed waits of the tests: pauses of more than a second on the real clock that no comment gives a reason for.

A pause is a `sleep`, or a `wait` whose result is not used. A wait for a condition, with a limit, does not count. Its
length is a number, or an expression of constants, whose value is not looked up: only a number shows that it is short.
`asyncio.sleep` costs nothing in a module that runs in virtual time, as every test does that is a coroutine, nor in one
that such a module imports.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

LONGEST: Final = 1.0
"""Seconds that a pause may take without a reason."""
VIRTUAL_TIME: Final = "tests.fakes.virtual_time"

_IS_VIRTUAL: Final = re.compile(rf"^from {VIRTUAL_TIME} import|^ *async def test_", re.MULTILINE)
_EVENT: Final = re.compile(r"(stop|event|over|done|gone|pause)$")
_WORTH_PARSING: Final = re.compile(r"\.(sleep|wait)\(")


@dataclass(frozen=True)
class FixedWait:
    """A pause without a reason."""

    module: str
    line: int
    length: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} waits for {self.length}"


def fixed_waits(root: Path, folder: str) -> list[FixedWait]:
    """Return the pauses of all modules below a folder of a repository that have no comment in or above their line."""
    modules = [path.relative_to(root).with_suffix("").as_posix() for path in sorted((root / folder).rglob("*.py"))]
    virtual = _in_virtual_time(root, modules)
    return [found for module in modules for found in _of_module(root, module, virtual=module in virtual)]


def _in_virtual_time(root: Path, modules: Iterable[str]) -> set[str]:
    """Return the modules that run in virtual time, and what they import of the tests."""
    users = {module for module in modules if _IS_VIRTUAL.search(_text(root, module))}
    return users.union(*(_origins(root, module) for module in users))


def _origins(root: Path, module: str) -> set[str]:
    imports = (node for node in _tree(root, module).body if isinstance(node, ast.ImportFrom))
    return {(node.module or "").replace(".", "/") for node in imports}


def _of_module(root: Path, module: str, *, virtual: bool) -> Iterator[FixedWait]:
    if not _WORTH_PARSING.search(_text(root, module)):
        return
    lines = _text(root, module).splitlines()
    for node in ast.walk(_tree(root, module)):
        call = _pause(node, virtual=virtual)
        if call is None or not (given := [*call.args, *(one.value for one in call.keywords)]):
            continue
        beside = lines[call.lineno - 1 : call.end_lineno]
        above = lines[call.lineno - 2].strip()
        if _is_long(given[0]) and not any("#" in line for line in beside) and not above.startswith("#"):
            yield FixedWait(f"{module}.py", call.lineno, ast.unparse(given[0]))


def _pause(node: ast.AST, *, virtual: bool) -> ast.Call | None:
    """Return the call that a node is, if it is a pause on the real clock."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="sleep")):
            return None if virtual else node
        case ast.Call(func=ast.Attribute(attr="sleep")):
            return node
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=waited_on, attr="wait")) as call):
            return call if _EVENT.search(ast.unparse(waited_on)) else None
        case _:
            return None


def _is_long(length: ast.expr) -> bool:
    """Return whether a length is more than a second, or of constants; what varies at run time is not judged."""
    if isinstance(length, ast.Constant):
        return isinstance(length.value, int | float) and length.value > LONGEST
    names = {node.id for node in ast.walk(length) if isinstance(node, ast.Name)}
    return all(name.isupper() for name in names - {"timedelta"})


@cache
def _tree(root: Path, module: str) -> ast.Module:
    return ast.parse(_text(root, module))


@cache
def _text(root: Path, module: str) -> str:
    return (root / module).with_suffix(".py").read_text(encoding="utf-8")
