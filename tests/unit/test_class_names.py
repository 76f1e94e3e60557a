"""A public class name means one thing in services and shared; only `Settings` is one per service."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def classes(sources: Iterable[Path], root: Path) -> Mapping[str, list[str]]:
    """Return the files that define each public class, relative to a folder."""
    defined: dict[str, list[str]] = defaultdict(list)
    for path in sorted(sources):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(path.relative_to(root).as_posix())
    return defined


def repeated(defined: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the names with more than one definition; one `Settings` per service is none of them."""
    settings = [path for path in defined.get("Settings", ()) if path.count("/") != 2 or "settings.py" not in path]
    rest = {name: paths for name, paths in defined.items() if len(paths) > 1 and name != "Settings"}
    return rest | ({"Settings": settings} if settings else {})


def test_a_class_name_is_defined_once_in_services_and_shared() -> None:
    sources = [path for top in ("services", "shared") for path in (ROOT / top).rglob("*.py")]
    assert repeated(classes(sources, ROOT)) == {}


def test_a_name_that_two_modules_define_is_found(tmp_path: Path) -> None:
    for name in ("services/a/settings.py", "services/b/settings.py", "services/b/app/settings.py", "shared/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("class Settings: ...\n" if "settings" in name else "class Reader: ...\n")
    (tmp_path / "services/a/reader.py").write_text("class Reader: ...\nclass _Private: ...\n")
    (tmp_path / "services/b/reader.py").write_text("class _Private: ...\n")

    assert repeated(classes(tmp_path.rglob("*.py"), tmp_path)) == {
        "Reader": ["services/a/reader.py", "shared/c.py"],
        "Settings": ["services/b/app/settings.py"],
    }
