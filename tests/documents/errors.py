"""`docs/reference/error-messages.md`: every code of a `MisconfiguredError`, with its messages.

All of it is from the code that raises them. A part of a message that depends on the case is an ellipsis. A message in a
variable, in a constant of this module or of another one, or in a function of the module, is taken from there.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

FILE: Final = "reference/error-messages.md"
ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")

_VARIES: Final = "\N{HORIZONTAL ELLIPSIS}"
_MOST_VARIANTS: Final = 2
"""What has more in one place of a message is an ellipsis."""

_SECTIONS: Final[Mapping[str, str]] = {
    "spanner_reader": "services/spanner_reader",
    "bigtable_reader": "services/bigtable_reader",
    "cdc_consumer": "services/cdc_consumer",
    "dead_letter": "services/dead_letter",
    "All services": "shared",
    "The local platform": "deploy",
}
_HEAD: Final = f"""# Error messages

<!-- Made from the code by `make docs`; a test fails where they differ. Change the messages, not this file. -->

Every message of a service or a command that ends with exit code 2. It ends with its code, in brackets: search this page
for that. `{_VARIES}` stands for a name, a number or the words of a library. A message names its fix, or this page does.
[Errors](errors.md) explains the most frequent ones. The codes of dead letters are [their reasons](dead-letters.md).
"""

EXPLAINED: Final[Mapping[str, str]] = {
    "change-stream-altered-to-leave-out": "Someone has altered the stream, so that it leaves changes out. Run "
    "the `ALTER CHANGE STREAM` in the message. What was left out until then needs a [resync](../how-to/resync.md).",
    "change-stream-leaves-out": "An option of the stream keeps changes out of it. Run the `ALTER CHANGE STREAM` "
    "in the message, and start after it.",
    "key-not-a-source-key": "A command asks the source for a row whose key is none of this table's. Give the "
    "consumer's command and the reader the same database and tables file.",
    "rows-time-malformed": "The command `rows` was asked for a time that is none. Write it as `2026-01-02T03:04:05Z`.",
    "spanner-refused": "Spanner does not find what a setting names. Correct the setting that the message names.",
    "spanner-request-invalid": "Spanner refuses the call for the reason in its words: mostly a missing role, "
    "which the reader's `doctor` names.",
    "bigtable-refused": "Bigtable refuses the call for the reason in its words: mostly a missing role or a wrong "
    "name, which the reader's `doctor` names.",
    "bigtable-stream-not-enabled": "The table has no change stream. Run the `gcloud` line in the message.",
    "bigtable-stream-refused": "Bigtable does not let this identity or app profile read the change stream. The "
    "message ends with the fix.",
    "bigtable-table-unfit": "The table, its stream, an app profile or a right is unfit. Each line that begins "
    "with `->` is a fix.",
    "append-refused": "BigQuery refuses to take rows, for the reason in its words. The consumer's `doctor` checks "
    "what it needs.",
    "before-not-a-time": "`--before` of `delete-missing-rows` takes a time such as `2026-01-02T03:04:05Z`.",
    "bigquery-query-refused": "BigQuery refuses the query of a mirror, for the reason in its words. The "
    "consumer's `doctor` checks dataset and roles.",
    "driver-refused": "The consumer's driver stops its tasks. Do what its words say.",
    "mirror-has-other-columns": "The mirror's columns do not fit the source's. The message names them, or the "
    "statement that fixes the mirror.",
    "source-refused": "The reader's command `rows` ended with an error that has no code of its own. Do what its "
    "words say.",
    "spark-task-refused": "A task of Spark ended with an error that has no code of its own. Do what its words say.",
    "after-malformed": "`--after` takes the value that the page before has printed. Leave it out for the first page.",
    "filter-time-invalid": "`--since` and `--until` take a time such as `2026-01-02T03:04:05Z`, or an age such "
    "as `30m`.",
    "mirrors-refused": "BigQuery refuses the query for newer rows, for the reason in its words. The "
    "service's `doctor` checks the dataset and the roles.",
    "history-kept-too-short": "`keep` of a history is shorter than its change stream retains. Let it keep as "
    "much, or leave `keep` out.",
    "lock-file-in-use": "Another process uses the same file or directory; the message names it. Stop that "
    "process, or give this one a place of its own.",
    "pubsub-refused": "Pub/Sub refuses the call for the reason in its words. `doctor` of the service names what "
    "is missing, and the command that fixes it.",
    "emulators-missing": "A program of the local platform is not installed. The message says how to get it.",
    "programs-missing": "Programs of the local platform are not installed. The message lists them, each with how "
    "to get it.",
}
"""What a code means and what to do, where its message is made elsewhere or of another program's words."""
_WORDLESS: Final = re.compile(r"(?:[^\w]|_|\b(?:table|the source|missing|before|after)\b)*")

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Bindings = Mapping[str, list[ast.expr | None]]


@dataclass(frozen=True, slots=True)
class RaisedError:
    """One place that makes a MisconfiguredError, or an error that is one."""

    file: Path
    line: int
    code: str
    """Empty where another error's code is passed on; what is neither that nor a text is in the code's own words."""
    messages: tuple[str, ...]

    @property
    def place(self) -> str:
        """Return where it is, to be found in an editor."""
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def text() -> str:
    """Return the whole document."""
    parts = [_HEAD]
    for title, folder in _SECTIONS.items():
        messages: dict[str, list[str]] = {}
        for raised in (one for one in raised_errors() if one.code and one.file.is_relative_to(ROOT / folder)):
            messages.setdefault(raised.code, []).extend(raised.messages)
        parts.append(f"## {title}\n")
        for code in sorted(messages):
            parts.append(f"### `{code}`\n")
            if code in EXPLAINED:
                parts.append(f"{EXPLAINED[code]}\n")
            parts += [*(f"- `` {message} ``" for message in dict.fromkeys(messages[code])), ""]
    return "\n".join(parts)


def wordless_codes() -> frozenset[str]:
    """Return the codes whose messages the page cannot show: there is nothing in them but names and others' words."""
    by_code: dict[str, list[str]] = {}
    for raised in raised_errors():
        by_code.setdefault(raised.code, []).extend(raised.messages)
    return frozenset(code for code, messages in by_code.items() if code and all(map(_WORDLESS.fullmatch, messages)))


@cache
def raised_errors() -> tuple[RaisedError, ...]:
    """Return every place in the code that makes a MisconfiguredError."""
    kinds = _kinds()
    return tuple(one for folder in _SECTIONS.values() for file in _files(folder) for one in _raised(file, kinds))


def codes_quoted() -> Iterable[str]:
    """Return the places that put the whole text of an error, with its code, into that of another one."""
    kinds = _kinds()
    for file in (file for folder in _SECTIONS.values() for file in _files(folder)):
        for handler in (node for node in ast.walk(_tree(file)) if isinstance(node, ast.ExceptHandler)):
            if handler.type is None or not kinds & {
                one.id for one in ast.walk(handler.type) if isinstance(one, ast.Name)
            }:
                continue
            for call in (node for node in ast.walk(handler) if isinstance(node, ast.Call)):
                given = _given(call, kinds, file)
                if given is not None and any(_is_whole(node, handler.name) for node in ast.walk(given[1])):
                    yield f"{file.relative_to(ROOT)}:{call.lineno}"


def _is_whole(node: ast.AST, error: str | None) -> bool:
    match node:
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return name == error
        case _:
            return False


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


def _kinds() -> frozenset[str]:
    """Return the names of MisconfiguredError and of the classes that are made of it."""
    kinds = {"MisconfiguredError"}
    classes = [node for folder in _SECTIONS.values() for file in _files(folder) for node in _classes(file)]
    while found := {one.name for one in classes if kinds & set(_bases(one))} - kinds:
        kinds |= found
    return frozenset(kinds)


def _classes(file: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(_tree(file)) if isinstance(node, ast.ClassDef)]


def _bases(of: ast.ClassDef) -> list[str]:
    return [base.id for base in of.bases if isinstance(base, ast.Name)]


def _raised(file: Path, kinds: frozenset[str]) -> Iterator[RaisedError]:
    tree = _tree(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    returned = {one.name: [node.value for node in ast.walk(one) if isinstance(node, ast.Return)] for one in functions}
    general = {**_imported(tree), **_assigned(tree.body), **returned}
    seen: set[int] = set()
    for scope in [*sorted(functions, key=lambda one: -one.lineno), tree]:  # the innermost function of a call first
        bindings = {**general, **_assigned(ast.walk(scope))} if scope is not tree else general
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and id(node) not in seen and (given := _given(node, kinds, file)) is not None:
                seen.add(id(node))
                code, message = given
                passed_on = isinstance(code, ast.Attribute) and code.attr == "code"
                written = code.value if isinstance(code, ast.Constant) else "" if passed_on else ast.unparse(code)
                messages = tuple(" ".join(one.split()) for one in _texts(message, bindings) or [_VARIES])
                yield RaisedError(file, node.lineno, str(written), messages)


def _given(call: ast.Call, kinds: frozenset[str], file: Path) -> tuple[ast.expr, ast.expr] | None:
    """Return the code and the message that a call gives to an error; None for any other call."""
    match call:
        case ast.Call(func=ast.Name(id=name), args=[code, message]) if name in kinds:
            return code, message
        case ast.Call(func=ast.IfExp(body=ast.Name(id=name)), args=[code, message]) if name in kinds:
            return code, message
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="from_text"), args=[message, code]) if (
            name in kinds
        ):
            return code, message
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"), args=[code, message]
        ):
            within = [one for one in _classes(file) if any(node is call for node in ast.walk(one))]
            return (code, message) if kinds & {base for one in within for base in _bases(one)} else None
        case _:
            return None


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr | None]]:
    found: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                found.setdefault(name, []).append(value)
            case _:
                pass
    return found


def _imported(tree: ast.Module) -> dict[str, list[ast.expr | None]]:
    """Return the constants that a module takes from others of ours."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            file = ROOT / f"{node.module.replace('.', '/')}.py"
            if file.is_file():
                there = _assigned(_tree(file).body)
                found |= {name.name: there[name.name] for name in node.names if name.name in there}
    return found


def _texts(node: ast.expr | ast.AST | None, bindings: _Bindings) -> list[str]:
    """Return what an expression may be as a text; nothing where it is none."""
    match node:
        case ast.Constant(value=str(value)):
            return [value]
        case ast.JoinedStr(values=values):
            return ["".join(parts) for parts in product(*(_parts(part, bindings) for part in values))]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in _texts(left, bindings) or [_VARIES] for b in _texts(right, bindings) or [_VARIES]]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body, bindings), *_texts(orelse, bindings)]
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return [written for value in bindings.get(name, []) for written in _texts(value, {})]
        case _:
            return []


def _parts(part: ast.expr, bindings: _Bindings) -> list[str]:
    """Return what may stand in one place of a formatted text."""
    if not isinstance(part, ast.FormattedValue):
        return _texts(part, {})
    found = _texts(part.value, bindings) if isinstance(part.value, ast.Name) else []
    return found if 0 < len(found) <= _MOST_VARIANTS else [_VARIES]
