"""The command `tables`: what source tables become under a tables file, before it is used."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, TextIO

from services.cdc_consumer.adapters.mask_key import read_mask_key
from services.cdc_consumer.adapters.source_rows import SourceProcess, opened_source
from services.cdc_consumer.commands.command_line import TablesCommand
from services.cdc_consumer.commands.tables import exit_code, print_previews
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.schema.preview import preview, unknown, without_clashes
from services.cdc_consumer.settings import Settings, TablesSettings
from shared.contracts.change_batch import decode_batch
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.runtime.doctor import inspect_keep, inspect_settings
from shared.runtime.findings import Finding
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file

_TABLES_FILE: Final = "TABLES_FILE"


def check_tables(parsed: TablesCommand, environ: Mapping[str, str], stop: Stop, out: TextIO) -> int:
    """Print what each source table becomes, and return the exit code."""
    settings = read_settings(TablesSettings, environ)
    _text, file = load_tables_file(parsed.check)
    if parsed.schema is not None and parsed.save_schema is not None:
        raise MisconfiguredError(
            "schema-options-conflict", "--save-schema asks the source, and --schema avoids that: give only one of them"
        )
    found: list[Finding] = []
    try:
        key = read_mask_key(file)
    except MisconfiguredError as error:
        key = None
        found.append(Finding.error("mask key", str(error), "let the file be there when the consumer starts"))
    plan = Plan(file, settings.bigquery_dataset, key)
    retention = timedelta()
    if parsed.schema is not None:
        tables: Mapping[str, bytes | MisconfiguredError] = _saved(parsed.schema)
    else:
        tables, retention = _asked(parsed.source or settings.source_rows, parsed.check, environ, stop)
    if parsed.save_schema is not None:
        _save([each for each in tables.values() if isinstance(each, bytes)], parsed.save_schema)
    previews = without_clashes(
        unknown(name, str(each), file)
        if isinstance(each, MisconfiguredError)
        else preview(decode_batch(each).header, plan)
        for name, each in tables.items()
    )
    found += _names_nothing(file, [one.source_table for one in previews])
    found += inspect_keep(file, tables, retention)
    found += inspect_settings(
        Settings,
        {**environ, _TABLES_FILE: str(parsed.check)},
        lambda it: f"project {it.dataset_project}, dataset {it.bigquery_dataset}",
    )
    print_previews(previews, found, parsed.json, out)
    return exit_code(previews, found)


def _names_nothing(file: TablesFile, tables: Sequence[str]) -> Iterator[Finding]:
    for section, name in file.naming_none_of(tables):
        fix = "correct it, unless it names tables of another source that shares the file"
        yield Finding.warning(f"tables file: {section}", f"{name} names no table of this source", fix)


def _asked(
    command: str, file: Path, environ: Mapping[str, str], stop: Stop
) -> tuple[Mapping[str, bytes | MisconfiguredError], timedelta]:
    """Return an announcement of each table of the source by its name, or why there is none; and what is retained.

    The reader is asked under the file, for what a Bigtable table looks like depends on it, and without any file for
    the tables that this one leaves out.
    """
    without = {name: value for name, value in environ.items() if name != _TABLES_FILE}
    found: dict[str, bytes | MisconfiguredError] = {}
    retention = timedelta()
    try:
        for asked in ({**without, _TABLES_FILE: str(file)}, without):
            with opened_source(command, asked, stop) as source:
                listed = source.listed()
                found |= {name: _described(source, name) for name in listed.names if name not in found}
                retention = timedelta(seconds=listed.retention)
    except TransientError as error:
        raise MisconfiguredError(
            "source-does-not-answer", f"the source does not answer: {error}; ask again, or use --schema"
        ) from error
    return found, retention


def _described(source: SourceProcess, name: str) -> bytes | MisconfiguredError:
    try:
        batch, _done = source.describe(name)
    except MisconfiguredError as error:
        return error
    return batch


def _save(tables: Sequence[bytes], path: Path) -> None:
    try:
        path.write_bytes(b"".join(each.replace(b"\n", b" ") + b"\n" for each in tables))
    except OSError as error:
        raise MisconfiguredError(
            "schema-file-not-written",
            f"--save-schema {path} cannot be written ({error.strerror}): name another file",
        ) from error


def _saved(path: Path) -> Mapping[str, bytes]:
    """Return what a saved schema holds by table: a change batch without changes in each line."""
    try:
        saved = path.read_bytes().splitlines()
    except OSError as error:
        raise MisconfiguredError("schema-file-unreadable", f"--schema {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(saved, 1):
        try:
            found[decode_batch(line).header.table] = line
        except PoisonRecordError as error:
            raise MisconfiguredError(
                "schema-file-invalid",
                f"--schema {path}: line {number} is no change batch ({error.detail}): write it with --save-schema",
            ) from error
    return found
