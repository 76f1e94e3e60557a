"""What may not grow: the arguments of a constructor, and the files at a service's root."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("services", "shared", "emulators", "deploy", "tests")
MOST_ARGUMENTS: Final = 6
"""Of a constructor, besides self. More of them are groups without a name; a dataclass names a group."""
MOST_FILES: Final = 4
"""At a service's root, besides an empty ``__init__.py``: a folder says what a file may import, and a root does not."""


def long_constructors(sources: Iterable[Path]) -> Iterator[str]:
    """Return where a constructor is written that takes too many arguments; that of a dataclass is not written."""
    for path in sorted(sources):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if "def __init__" in text else "")):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                given = node.args
                taken = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                number = len([one for one in taken if one is not None]) - 1
                if number > MOST_ARGUMENTS:
                    yield f"{path}:{node.lineno} takes {number} arguments"


def files_at_roots(services: Path) -> Mapping[str, list[str]]:
    """Return the files at the root of each service, but for an ``__init__.py`` that is empty."""
    return {
        init.parent.name: [
            file.name for file in init.parent.iterdir() if file.is_file() and (file != init or init.read_bytes())
        ]
        for init in services.glob("*/__init__.py")
    }


def test_no_constructor_takes_more_than_six_arguments() -> None:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert list(long_constructors(sources)) == []


def test_a_service_has_at_most_four_files_at_its_root_and_an_empty_init() -> None:
    roots = files_at_roots(ROOT / "services")

    assert roots.keys() == {"spanner_reader", "bigtable_reader", "cdc_consumer", "dead_letter"}
    assert {service: files for service, files in roots.items() if len(files) > MOST_FILES} == {}
    assert [service for service, files in roots.items() if "__init__.py" in files] == []
