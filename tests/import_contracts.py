"""The import table as contracts of import-linter: lists of what is allowed, exact to the subpackage.

import-linter's own contract types list what is forbidden and take all of an outside package for one module, so that
`google.cloud.bigquery` could not be told from `google.cloud.pubsub_v1`. These read the imports from the source, those
inside functions and for type checking too.
"""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, Final

from importlinter import Contract, ContractCheck, fields, output

_PYPROJECT: Final = Path("pyproject.toml")  # of the tree whose imports are checked, which is where we are run
_BASE: Final = "dependencies"


@dataclass(frozen=True, order=True)
class Import:
    """A line of a module and the dotted name that it imports."""

    module: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.module} -> {self.name} (l.{self.line})"


def _names(**options: Any) -> Any:
    return fields.ListField(subfield=fields.StringField(), **options)


class MayImport(Contract):
    """The modules import the standard library and what is listed, and nothing else.

    Every name stands for itself and what is below it. ``{service}`` stands for one name, the same in the whole row:
    ``services.{service}.core`` may import ``services.{service}.core`` is a rule about each service's own core.

    - modules: whom the row is about.
    - may_import: what is allowed.
    - standard_library: what is allowed of it, where that is not all.
    """

    modules: Sequence[str] = _names()
    may_import: Sequence[str] = _names()
    standard_library: Sequence[str] | None = _names(required=False)

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        refused = [
            found
            for module in sorted(graph.modules)
            if self.is_about(module)
            for found in imports_of(module)
            if not self._allows(found)
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        _render(check, "is not allowed")

    def is_about(self, module: str) -> bool:
        """Return whether this list is that of a module."""
        return _is_below(module, _filled(self.modules, _service(module)))

    def _allows(self, found: Import) -> bool:
        if _root(found.name) in sys.stdlib_module_names:
            return self.standard_library is None or _is_below(found.name, self.standard_library)
        return _is_below(found.name, _filled(self.may_import, _service(found.module)))


class Declares(Contract):
    """Every outside package that the modules import is declared in pyproject.toml, by the extras named here.

    - modules: whom it is about, with what is below them.
    - extras: of ``project.optional-dependencies``; what the project declares for all of its parts counts always.
    """

    modules: Sequence[str] = _names()
    extras: Sequence[str] = _names()

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        declared = _declared(self.extras)
        ours = set(self.session_options["root_packages"])
        refused = [
            found
            for module in sorted(graph.modules)
            if _is_below(module, self.modules)
            for found in imports_of(module)
            if _root(found.name) not in ours | sys.stdlib_module_names and not _distributions(found.name) & declared
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        _render(check, f"is not declared by {', '.join([_BASE, *self.extras])}")


class NoTestModule(Contract):
    """No module imports one that holds tests: what two of them need is in a module of its own.

    - modules: whom it is about, with what is below them.
    """

    modules: Sequence[str] = _names()

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        refused = [
            found
            for module in sorted(graph.modules)
            if _is_below(module, self.modules)
            for found in imports_of(module)
            if _is_below(found.name, self.modules) and ".test_" in found.name
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        _render(check, "is an import of a test module")


class EveryModule(Contract):
    """Every module below ``modules`` that imports anything is in exactly one list of `MayImport`."""

    modules: Sequence[str] = _names()

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        options = tomllib.loads(_PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
        rows = [MayImport(one["name"], self.session_options, one) for one in options if one["type"] == "may_import"]
        refused = [
            f"{module}: {' and '.join(names) or 'no list'}"
            for module in sorted(graph.modules)
            if _is_below(module, self.modules) and imports_of(module)
            if len(names := [repr(row.name) for row in rows if row.is_about(module)]) != 1
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        _render(check, "has to be one")


@cache
def imports_of(module: str) -> Sequence[Import]:
    """Return everything that a module imports, wherever in it; `from a import b` is an import of ``a.b``."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ()
    tree = ast.parse(Path(spec.origin).read_bytes())
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    found = {Import(module, line, name) for node in ast.walk(tree) for line, name in _imported(node, package)}
    return tuple(sorted(found))


def _declared(extras: Iterable[str]) -> set[str]:
    project = tomllib.loads(_PYPROJECT.read_text())["project"]
    requirements = [*project[_BASE], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    return {_normal(re.split(r"[^\w.-]", one, maxsplit=1)[0]) for one in requirements}


def _distributions(name: str) -> set[str]:
    """Return the installed distributions that hold what a dotted name imports; those of its nearest parent they know.

    More than one share a namespace: `google.cloud` belongs to nobody, `google.cloud.bigquery` to one.
    """
    known = _distributions_by_module()
    while name and name not in known:
        name = name.rpartition(".")[0]
    return known.get(name, set())


@cache
def _distributions_by_module() -> Mapping[str, set[str]]:
    known: dict[str, set[str]] = {}
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.suffix in (".py", ".so") and not file.parts[0].endswith((".dist-info", "..")):
                parts = [*file.parts[:-1], file.name.partition(".")[0]]
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                known.setdefault(module, set()).add(_normal(distribution.name))
    return known


def _imported(node: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Import(names=names):
            yield from ((node.lineno, one.name) for one in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            origin = resolve_name("." * level + (module or ""), package) if level else module
            yield from ((node.lineno, f"{origin}.{one.name}") for one in names)
        case _:
            return


def _service(module: str) -> str:
    """Return the service that a module belongs to; nothing where it belongs to none."""
    parts = module.split(".")
    return parts[1] if parts[0] == "services" and len(parts) > 1 else ""


def _filled(patterns: Iterable[str], service: str) -> Iterator[str]:
    return (pattern.replace("{service}", service) for pattern in patterns)


def _is_below(name: str, tops: Iterable[str]) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def _root(name: str) -> str:
    return name.partition(".")[0]


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _render(check: ContractCheck, why: str) -> None:
    for refused in check.metadata["refused"]:
        output.print_error(f"- {refused} {why}", bold=False)
    output.new_line()
