"""What every `doctor` begins with: the settings and the tables file."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, TextIO, TypeVar

from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.runtime.findings import Finding, exit_code, misspelt_settings, print_findings
from shared.runtime.settings import read_settings
from shared.runtime.tables_file import load_tables_file

LOGIN: Final = "gcloud auth application-default login, or a service account of the workload's"
"""The fix where there are no credentials."""

T = TypeVar("T")


def run_doctor(findings: Iterable[Finding], out: TextIO, *, as_json: bool) -> int:
    """Print the findings and return the exit code."""
    found = list(findings)
    print_findings(found, as_json, out)
    return exit_code(found)


def inspect_settings(
    settings: type[T], environ: Mapping[str, str], summary: Callable[[T], str]
) -> Generator[Finding, None, T | None]:
    """Yield what is found of the settings; return them, or None if they are wrong."""
    try:
        right = read_settings(settings, environ)
    except MisconfiguredError as error:
        yield Finding.error("settings", str(error), "set what is named; nothing else can be checked without it")
        return None
    yield Finding.ok("settings", summary(right))
    yield from misspelt_settings(settings, environ)
    return right


def inspect_tables_file(path: Path | None, without: str) -> Generator[Finding, None, TablesFile]:
    """Yield what is found of the tables file, ``without`` if there is none; return it, or an empty one."""
    try:
        _text, file = load_tables_file(path)
    except MisconfiguredError as error:
        yield Finding.error("tables file", str(error), "fix the lines that are named")
        return TablesFile()
    yield Finding.ok("tables file", str(path or without))
    return file


def inspect_keep(file: TablesFile, tables: Iterable[str], retention: timedelta) -> Iterator[Finding]:
    """Yield what is found where a history of these tables keeps less than their change stream retains."""
    try:
        file.refuse_short_keep(tables, retention)
    except MisconfiguredError as error:
        yield Finding.error("tables file: keep", str(error), "let the history keep as much, or leave keep out")
