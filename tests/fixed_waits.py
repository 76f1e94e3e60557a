"""Find the fixed waits of the tests: pauses of more than a second on the real clock that no comment gives a reason for.

A pause is a `sleep`, or a `wait` whose answer nobody takes. A wait on a condition that has an upper limit is none.
`asyncio.sleep` costs nothing in a module that runs in virtual time, as every test does that is a coroutine, nor in one
that such a module imports.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from operator import add, mul, sub, truediv
from pathlib import Path
from typing import Final

LONGEST: Final = 1.0
"""Seconds that a pause may take without a reason."""
VIRTUAL_TIME: Final = "tests.fakes.virtual_time"

_IS_VIRTUAL: Final = re.compile(rf"^from {VIRTUAL_TIME} import|^ *async def test_", re.MULTILINE)
_EVENT: Final = re.compile(r"(stop|event|over|done|gone|pause)$")
_WORTH_PARSING: Final = re.compile(r"\.(sleep|wait)\(")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


@dataclass(frozen=True)
class FixedWait:
    """A pause without a reason."""

    module: str
    line: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.module}:{self.line} waits {self.seconds:g} s"


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
        seconds = _seconds(root, module, given[0])
        beside = lines[call.lineno - 1 : call.end_lineno]
        above = lines[call.lineno - 2].strip()
        if seconds > LONGEST and not any("#" in line for line in beside) and not above.startswith("#"):
            yield FixedWait(f"{module}.py", call.lineno, seconds)


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


def _seconds(root: Path, module: str, value: ast.expr) -> float:
    """Return the seconds that an expression of constants is; 0 where it is more than that."""
    try:
        return _value(root, module, value)
    except LookupError:
        return 0.0


def _value(root: Path, module: str, value: ast.expr) -> float:
    """Return a number, or a duration in seconds."""
    match value:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_value(root, module, left), _value(root, module, right))
        case ast.Call(func=ast.Name(id="timedelta"), args=[], keywords=given):
            return timedelta(**{str(one.arg): _value(root, module, one.value) for one in given}).total_seconds()
        case ast.Call(func=ast.Attribute(value=duration, attr="total_seconds")):
            return _value(root, module, duration)
        case ast.Name(id=name):
            return _value(root, *_constants(root, module)[name])
        case _:
            raise LookupError(ast.unparse(value))


@cache
def _constants(root: Path, module: str) -> Mapping[str, tuple[str, ast.expr]]:
    """Return where the constants that a module has or imports are from, and what they are."""
    found: dict[str, tuple[str, ast.expr]] = {}
    for node in _tree(root, module).body:
        match node:
            case ast.ImportFrom(module=str(origin), names=names):
                place = origin.replace(".", "/")
                if (root / place).with_suffix(".py").is_file():
                    theirs = _constants(root, place)
                    found |= {one.asname or one.name: theirs[one.name] for one in names if one.name in theirs}
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = module, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = module, value
            case _:
                pass
    return found


@cache
def _tree(root: Path, module: str) -> ast.Module:
    return ast.parse(_text(root, module))


@cache
def _text(root: Path, module: str) -> str:
    return (root / module).with_suffix(".py").read_text(encoding="utf-8")
