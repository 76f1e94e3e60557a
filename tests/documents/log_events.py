"""`docs/reference/log-events.md`: every event of the logs, from the code that logs it."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from shared.runtime.log_events import SENTENCES
from tests.documents.errors import ROOT

FILE: Final = "reference/log-events.md"

_LEVELS: Final = ("debug", "info", "warning", "error", "critical", "exception")
_FOLDERS: Final = {
    "services/spanner_reader": "spanner_reader",
    "services/bigtable_reader": "bigtable_reader",
    "services/cdc_consumer": "cdc_consumer",
    "services/dead_letter": "dead_letter",
    "shared/reading": "readers",
    "shared/pubsub": "all",
    "shared/runtime": "all",
    "shared/contracts": "all",
}
_HEAD: Final = """# Log events

<!-- Made from the code by `make docs`; a test fails where they differ. Change `SENTENCES`, not this file. -->

Each line of a log has one of these names in `event`, and its sentence in `message`. A line of a library has no `event`.
Filter by the name: it never changes. Fields are those that the line may have beside time, severity and service.
[Errors](errors.md#in-the-log-of-a-running-service) says what to do about some of them.

| `event` | `message` | Severity | Fields | Logged by |
|---|---|---|---|---|
"""


def text() -> str:
    """Return the whole document."""
    found: defaultdict[str, list[set[str]]] = defaultdict(lambda: [set(), set(), set()])
    for name, level, fields, place in logged_events():
        for known, more in zip(found[name], ({_severity(level)}, fields, {_where(place)}), strict=True):
            known.update(more)
    rows = (
        f"| `{name}` | {SENTENCES.get(name, '')} | {_listed(levels)} | {_listed(f'`{one}`' for one in fields)} | "
        f"{_listed(places)} |\n"
        for name, (levels, fields, places) in sorted(found.items())
    )
    return _HEAD + "".join(rows)


@cache
def logged_events() -> tuple[tuple[str, str, frozenset[str], str], ...]:
    """Return each event's name, level, fields and file, once for each place; an empty name is one that is not found."""
    files = sorted(file for folder in _FOLDERS for file in (ROOT / folder).rglob("*.py"))
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    values: defaultdict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        for name, value in _assigned(tree):
            values[name].add(value)
    return tuple(
        (
            name,
            call.func.attr,
            frozenset(word.arg for word in call.keywords if word.arg and word.arg != "exc_info"),
            place,
        )
        for place, tree in trees.items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _logs(call.func) and call.args
        for name in _names(call.args[0], tree, values) or [""]
    )


def _logs(method: ast.Attribute) -> bool:
    """Return whether a call is one of a logger, which is called so, or made on the spot."""
    return method.attr in _LEVELS and ast.unparse(method.value).endswith(("log", "get_logger()"))


def _names(event: ast.expr, tree: ast.Module, values: defaultdict[str, set[str]]) -> Iterable[str]:
    match event:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.Attribute(attr=name):
            return sorted(values[name])
        case ast.Name(id=name) if values[name]:
            return sorted(values[name])
        case ast.Name(id=name):
            return sorted(_passed(name, tree))
        case _:
            return []


def _passed(parameter: str, tree: ast.Module) -> Iterator[str]:
    """Yield the texts that are given to the methods of a module whose first parameter has this name."""
    methods = {
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and [each.arg for each in one.args.args[:2]] == ["self", parameter]
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=[ast.Constant(value=str(name)), *_]) if (
                method in methods
            ):
                yield name
            case _:
                pass


def _assigned(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(value))):
                yield name, value
            case _:
                pass


def _severity(level: str) -> str:
    return {"exception": "ERROR"}.get(level, level.upper())


def _where(place: str) -> str:
    return next(name for folder, name in _FOLDERS.items() if place.startswith(f"{folder}/"))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
