"""A public class name means one thing in services and shared; only `Settings` is one per service."""

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def test_a_class_name_is_defined_once_in_services_and_shared() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for path in (path for top in ("services", "shared") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(path.relative_to(ROOT).as_posix())

    settings = defined.pop("Settings")
    assert {name: paths for name, paths in defined.items() if len(paths) > 1} == {}
    assert [path for path in settings if path.count("/") != 2 or not path.endswith("/settings.py")] == []
