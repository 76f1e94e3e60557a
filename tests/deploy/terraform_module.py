"""The Terraform module as data, and what resources of Google's provider take, from the text of its bindings."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
MODULE: Final = ROOT / "deploy/terraform"
TOOLS: Final = ROOT / "build/deploy"  # `make deploy-checks` makes it

_META: Final = frozenset({"count", "for_each", "depends_on", "lifecycle", "provider", "timeouts"})
_BLOCK: Final = "__is_block__"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource or data source of the module."""

    kind: str
    name: str
    data: bool
    body: Mapping[str, Any]

    @property
    def address(self) -> str:
        """Return what an expression calls it."""
        return f"{'data.' if self.data else ''}{self.kind}.{self.name}"


def parsed(file: Path) -> Mapping[str, Any]:
    """Return a file of Terraform as JSON has it."""
    command = [str(TOOLS / "bin/hcl2tojson"), str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: Mapping[str, Any] = json.loads(ran.stdout)
    return found


def named(blocks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return blocks with one label by it."""
    return {unquoted(name): body for block in blocks for name, body in block.items()}


def resources(files: Sequence[Path]) -> Iterator[Resource]:
    """Yield the resources and data sources of some files."""
    for file in files:
        content = parsed(file)
        for block, data in (("resource", False), ("data", True)):
            for each in content.get(block, []):
                for kind, named_bodies in each.items():
                    for name, body in named_bodies.items():
                        yield Resource(unquoted(kind), unquoted(name), data, body)


def unquoted(text: str) -> str:
    """Return a label or a plain string without its quotation marks."""
    return text.strip('"')


def expression(value: Any) -> str:
    """Return an attribute as it stands in the file."""
    text = json.dumps(value) if isinstance(value, bool | int) else str(value)
    return text.removeprefix("${").removesuffix("}") if text.startswith("${") else text


def attribute_errors(resource: Resource) -> Sequence[str]:
    """Return what of a resource the provider does not take, and what it needs and does not get."""
    folder = resource.kind.removeprefix("google_")
    classes = _classes(f"data_google_{folder}" if resource.data else folder)
    (top,) = (
        name for name, one in classes.items() if any("TerraformMetaArguments" in ast.unparse(b) for b in one.bases)
    )
    return list(_attribute_errors(resource.address, resource.body, top, classes))


def _attribute_errors(
    where: str, body: Mapping[str, Any], name: str, classes: Mapping[str, ast.ClassDef]
) -> Iterator[str]:
    (init,) = (one for one in classes[name].body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    known = {
        argument.arg: (ast.unparse(argument.annotation or ast.Constant(None)), default is None)
        for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
    }
    given = {key: value for key, value in body.items() if key != _BLOCK}
    for dynamic in given.pop("dynamic", []):
        given |= {unquoted(key): one["content"] for key, one in dynamic.items() if key != _BLOCK}
    for key, value in given.items():
        if key in _META:
            continue
        if key not in known:
            yield f"{where}: there is no {key}"
            continue
        inner = [part for part in re.findall(r"\w+", known[key][0]) if part in classes]
        blocks = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
        if bool(blocks) != bool(inner):
            yield f"{where}: {key} is {'a block' if inner else 'no block'}"
        for block in blocks if inner else ():
            yield from _attribute_errors(f"{where}.{key}", block, inner[0], classes)
    yield from (f"{where}: {key} is missing" for key, (_, needed) in known.items() if needed and key not in given)


@cache
def _classes(folder: str) -> Mapping[str, ast.ClassDef]:
    (file,) = TOOLS.glob(f"lib/python3*/site-packages/cdktf_cdktf_provider_google/{folder}/__init__.py")
    return {one.name: one for one in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(one, ast.ClassDef)}
