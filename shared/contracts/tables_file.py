"""The tables file: which tables are mirrored, under what name and how. One TOML file for all services.

    include = ["*"]                   # shell patterns of source table names, at the top of the file
    exclude = ["tmp_*"]
    mask_key_file = "/etc/millrace/mask.key"  # on the consumer's machines: the key of masks by sha256

    [defaults]                        # for every table
    dataset = "mirror"                # else the consumer's BIGQUERY_DATASET
    name = "{schema}_{table}"
    mode = "mirror"                   # mirror | history | both
    ignored_columns = []
    soft_delete = false
    max_staleness = "15m"             # unset: as it is; a new table is fresh at every query
    buckets = 16                      # ordering keys of the table; unset: the reader's BUCKETS
    json_arrays = []                  # columns written as JSON, so that arrays with NULL elements fit
    jsonb_numbers = "refuse"          # of jsonb numbers that BigQuery's JSON does not hold: refuse | text
    unfit_key = "refuse"              # of a table whose key no BigQuery key holds: refuse | history
    keep = "90d"                      # how long a history keeps a change; unset: as it is
                                      # (those of columns: column_options.py; of Bigtable: bigtable_options.py)

    [tables."Orders"]                 # the same keys for one table, or for those that a pattern names
    mode = "both"

A table takes each option from its own section, else from the last section whose pattern names it, else from the
defaults. A mistake is never passed over: an unknown key may be a misspelt one.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args

from shared.contracts.bigtable_options import BIGTABLE_OPTIONS, BigtableOptions
from shared.contracts.column_options import Masks, Renames, masks, renames
from shared.contracts.durations import format_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.option_values import (
    NestedMistakesError,
    boolean,
    column_names,
    days,
    duration,
    kind_of,
    matches_any,
    one_of,
    pattern,
    patterns,
    patterns_if_any,
    shown,
    template,
    text,
    whole_number,
)
from shared.contracts.toml_lines import Path, TomlDocument, TomlMistake, read_document

Mode = Literal["mirror", "history", "both"]
JsonbNumbers = Literal["refuse", "text"]
UnfitKey = Literal["refuse", "history"]

_NO_SCHEMA: Final = re.compile(r"[_-]*\{schema\}$|\{schema\}[_-]*")
_NAME_LETTERS: Final = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)
_DATASET_LETTERS: Final = re.compile(r"[A-Za-z0-9_]*", re.ASCII)
_MOST_BUCKETS: Final = 10_000
_ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""What a terminal would take for a command, and how it is shown."""
_TOP: Final = ("include", "exclude", "mask_key_file", "defaults", "tables")

Section = Mapping[str, Any]
"""The options that a section says, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What the file says of one source table."""

    name: str
    """In BigQuery; of a history, with a suffix of the consumer's."""
    dataset: str | None = None
    """None: the consumer's own."""
    mode: Mode = "mirror"
    ignored_columns: tuple[str, ...] = ()
    soft_delete: bool = False
    max_staleness: timedelta | None = None
    """None: not ours to set."""
    buckets: int | None = None
    """How many ordering keys the table has; None: the reader's own number."""
    json_arrays: tuple[str, ...] = ()
    jsonb_numbers: JsonbNumbers = "refuse"
    """What becomes of a number that BigQuery's JSON does not hold: no change with it is applied, or it is a text."""
    unfit_key: UnfitKey = "refuse"
    """What becomes of a table whose key no BigQuery key holds: none of its changes is applied, or it has a history."""
    masked_columns: Masks = ()
    """By the names that columns have at the source, as `renamed_columns`."""
    renamed_columns: Renames = ()
    keep: timedelta | None = None
    """How long a history keeps a change, in whole days; None: not ours to set."""
    bigtable: BigtableOptions = field(default_factory=BigtableOptions)
    """For its reader alone."""

    @property
    def columns_changed(self) -> Iterator[tuple[str, str]]:
        """Yield each option that ignores, masks or renames a column, and the column: none may be of the key."""
        yield from (("ignored_columns", column) for column in self.ignored_columns)
        yield from (("masked_columns", column) for column, _mask in self.masked_columns)
        yield from (("renamed_columns", column) for column, _name in self.renamed_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesFile:
    """What the file says. Without one: every table is mirrored, and named as its source."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    defaults: Section = field(default_factory=dict)
    tables: tuple[tuple[str, Section], ...] = ()
    """By the names or patterns of source tables, in the order of the file."""
    mask_key_file: str | None = None
    """Where the consumer's machines have the key of masks by sha256."""
    document: TomlDocument | None = field(default=None, compare=False, repr=False)
    """What it was read from."""

    def included(self, source_table: str) -> bool:
        """Return whether a source table is mirrored at all."""
        return matches_any(self.include, source_table) and not matches_any(self.exclude, source_table)

    def excluding(self, source_table: str) -> str:
        """Return the pattern of ``exclude`` that leaves a source table out; empty: none does."""
        return next((each for each in self.exclude if fnmatchcase(source_table, each)), "")

    @property
    def datasets(self) -> frozenset[str]:
        """Return the datasets that are named in full, and not by a table's schema."""
        return frozenset(name for name in self._datasets() if "{" not in name)

    @property
    def dataset_templates(self) -> frozenset[str]:
        """Return the names of datasets that stand for one by a table's schema, such as ``mirror_{schema}``."""
        return frozenset(name for name in self._datasets() if "{" in name)

    def _datasets(self) -> Iterator[str]:
        return (section["dataset"] for section in self._all_sections() if "dataset" in section)

    def _all_sections(self) -> Iterator[Section]:
        yield self.defaults
        yield from (section for _name, section in self.tables)

    def columns_named_for(self, source_table: str) -> frozenset[str]:
        """Return the columns that the table's very own section names: those it should have."""
        own = [section for name, section in self.tables if name == source_table]
        lists = [section.get(option, ()) for section in own for option in ("ignored_columns", "json_arrays")]
        by_name = [section.get(option, ()) for section in own for option in ("masked_columns", "renamed_columns")]
        return frozenset().union(*lists, *([name for name, _value in each] for each in by_name))

    @property
    def needs_mask_key(self) -> bool:
        """Return whether any column is masked by sha256."""
        masked = [section.get("masked_columns", ()) for section in self._all_sections()]
        return any(mask.kind == "sha256" for each in masked for _name, mask in each)

    def naming_none_of(self, source_tables: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield each name or pattern that names none of these tables, with the list or section that it is in."""
        named = [("include", self.include), ("exclude", self.exclude)]
        named += [(_heading(name), (name,)) for name, _section in self.tables]
        for section, listed in named:
            yield from (
                (section, each) for each in listed if not any(fnmatchcase(name, each) for name in source_tables)
            )

    def section_of(self, source_table: str, option: str) -> str:
        """Return the heading of the section that a source table takes an option from."""
        naming = [name for name, section in self._sections(source_table) if option in section]
        return _heading(naming[-1]) if naming else "[defaults]"

    def where(self, source_table: str, option: str, *inside: str) -> str:
        """Return the line from which a source table takes an option, or what is ``inside`` of it."""
        naming = [name for name, section in self._sections(source_table) if option in section]
        return self.line((*(("tables", naming[-1]) if naming else ("defaults",)), option, *inside))

    def line(self, path: Path) -> str:
        """Return the line of what the keys of a path lead to, in words."""
        return "the tables file" if self.document is None else f"line {self.document.line_of(path)} of the tables file"

    def refuse_short_keep(self, source_tables: Iterable[str], retention: timedelta) -> None:
        """Raise MisconfiguredError if a history of these tables keeps less than their change stream retains.

        What the stream is read for again would be in partitions that BigQuery has dropped, or drops at once.
        """
        short = []
        for table in source_tables:
            options = self.options(table)
            if self.included(table) and options.keep is not None and options.keep < retention:
                short.append(
                    f'{self.where(table, "keep")}: keep = "{format_duration(options.keep)}" of table {table} is '
                    f"shorter than the {format_duration(retention)} that its change stream retains: keep at least that"
                )
        if short:
            raise MisconfiguredError("history-kept-too-short", "; ".join(short))

    def changed_keys(self, source_table: str, key: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield each option that changes a column of a table's key, and what is wrong with that, with its line."""
        upper = {name.upper() for name in key}
        for option, column in self.options(source_table).columns_changed:
            if column.upper() in upper:
                where = f"{self.where(source_table, option, column)}: {option} names column {column}"
                because = "which is in its primary key, by which BigQuery and every command find rows"
                yield option, f"{where} of table {source_table}, {because}"

    def refuse_changed_keys(self, source_table: str, key: Iterable[str]) -> None:
        """Raise MisconfiguredError if columns of a table's key are ignored, masked or renamed."""
        for option, why in self.changed_keys(source_table, key):
            raise MisconfiguredError(
                "key-column-changed",
                f"{why}: take it out of {option}. If a key must not be seen, leave its table out (exclude)",
            )

    def _sections(self, source_table: str) -> Sequence[tuple[str, Section]]:
        """Return the sections that speak of a source table, of which the last that says something is right."""
        by_pattern = [each for each in self.tables if _is_pattern(each[0]) and fnmatchcase(source_table, each[0])]
        return [*by_pattern, *(each for each in self.tables if each[0] == source_table)]

    def options(self, source_table: str) -> TableOptions:
        """Return the options of a source table (``schema.Table``, or ``Table`` where it has no schema)."""
        merged = dict(self.defaults)
        for _name, section in self._sections(source_table):
            merged |= section
        bigtable = BigtableOptions(**{name: merged.pop(name) for name in BIGTABLE_OPTIONS if name in merged})
        name = _filled_in(merged.pop("name", "{schema}_{table}"), source_table)
        dataset = _filled_in(merged.pop("dataset", ""), source_table) or None
        return TableOptions(name=name, dataset=dataset, bigtable=bigtable, **merged)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that may have been meant; None if none is known."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)), None)


def read_tables_file(text: str, name: str = "tables.toml") -> TablesFile:
    """Return what a tables file says; MisconfiguredError with every mistake in it as ``name:line: what``."""
    document = read_document(text)
    reading = _Reading(document)
    file = reading.file()
    if not reading.mistakes:
        reading.refuse_one_name_for_two(file)
    if not reading.mistakes:
        return file
    mistakes = sorted(reading.mistakes, key=lambda mistake: mistake.line)
    listed = "".join(f"\n  {name}:{mistake.line}: {mistake.what.translate(_ESCAPED)}" for mistake in mistakes)
    raise MisconfiguredError("invalid-tables-file", f"invalid tables file:{listed}")


class _Reading:
    """Reads a document, and goes on after a mistake."""

    def __init__(self, document: TomlDocument) -> None:
        self._document = document
        self.mistakes = list(document.mistakes)

    def file(self) -> TablesFile:
        content = self._document.content
        self._refuse_unknown((), content, _TOP)
        tables = self._table((), content, "tables")
        return TablesFile(
            include=self._value((), content, "include", patterns) or ("*",),
            exclude=self._value((), content, "exclude", patterns_if_any) or (),
            defaults=self._section(("defaults",), self._table((), content, "defaults"), shared=True),
            tables=tuple((name, self._named_section(name, tables)) for name in tables),
            mask_key_file=self._value((), content, "mask_key_file", text),
            document=self._document,
        )

    def refuse_one_name_for_two(self, file: TablesFile) -> None:
        """Refuse what shows here already of two source tables that would be one table."""
        owners: dict[tuple[str | None, str], str] = {}
        for source_table, _section in file.tables:
            if _is_pattern(source_table) or not file.included(source_table):
                continue
            options = file.options(source_table)
            owner = owners.setdefault((options.dataset, options.name), source_table)
            if owner != source_table:
                what = f"{shown(source_table)} would be table {options.name}, and so would {shown(owner)}"
                self._mistake(("tables", source_table), what)

    def _named_section(self, name: str, tables: Mapping[str, Any]) -> Section:
        if not name:
            self._mistake(("tables", name), "a section for a table without a name")
        if _is_pattern(name):
            try:
                pattern(name)
            except ValueError as error:
                self._mistake(("tables", name), str(error))
        section = self._table(("tables",), tables, name)
        return self._section(("tables", name), section, shared=_is_pattern(name))

    def _section(self, path: Path, content: Mapping[str, Any], *, shared: bool) -> Section:
        """Return the options of a section; ``shared``: of more tables than one."""
        self._refuse_unknown(path, content, tuple(_OPTIONS))
        read = {name: self._value(path, content, name, reader) for name, reader in _OPTIONS.items() if name in content}
        section = {name: value for name, value in read.items() if value is not None}  # which was a mistake
        if shared and "{table}" not in (name := section.get("name", "{table}")):
            self._mistake((*path, "name"), f"name = {shown(name)} for more than one table: put {{table}} in it")
        ignored = {each.lower() for each in section.get("ignored_columns", ())}
        twice = ignored & {each.lower() for each in section.get("json_arrays", ())}
        if twice:
            self._mistake((*path, "json_arrays"), f"json_arrays names an ignored column: {', '.join(sorted(twice))}")
        for option in ("masked_columns", "renamed_columns"):
            for column, _value in section.get(option, ()):
                if column.lower() in ignored:
                    self._mistake((*path, option, column), f"{option} names an ignored column: {column}")
        for column, mask in section.get("masked_columns", ()):
            if mask.kind == "sha256" and "mask_key_file" not in self._document.content:
                what = (
                    f"column {shown(column)} is masked by sha256: name the file with the key at the top, mask_key_file"
                )
                self._mistake((*path, "masked_columns", column), what)
        return section

    def _value(self, path: Path, content: Mapping[str, Any], name: str, read: Callable[[Any], Any]) -> Any:
        if name not in content:
            return None
        try:
            return read(content[name])
        except NestedMistakesError as error:
            for inside, what in error.mistakes:
                self._mistake((*path, name, *inside), what)
        except ValueError as error:
            self._mistake((*path, name), f"{name}: {error}")
        return None

    def _table(self, path: Path, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = content.get(name, {})
        if isinstance(found, dict):
            return found
        self._mistake((*path, name), f"{name}: not a table, but {kind_of(found)}; write [{'.'.join((*path, name))}]")
        return {}

    def _refuse_unknown(self, path: Path, content: Iterable[str], known: Sequence[str]) -> None:
        for key in content:
            if key in known:
                continue
            where = f" in [{'.'.join(path)}]" if path else ""
            if path and key in _TOP:
                hint = "it stands at the top of the file, above every section"
            elif not path and key in _OPTIONS:
                hint = "it stands in [defaults], or in the section of a table"
            else:
                hint = f"the nearest known one is {difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]}"
            self._mistake((*path, key), f"unknown key {shown(key)}{where}; {hint}")

    def _mistake(self, path: Path, what: str) -> None:
        self.mistakes.append(TomlMistake(self._document.line_of(path), what))


_OPTIONS: Final[Mapping[str, Callable[[object], object]]] = {
    "dataset": template(_DATASET_LETTERS, "letters, digits, '_'"),
    "name": template(_NAME_LETTERS, "letters, digits, '_', '-'"),
    "mode": one_of(get_args(Mode)),
    "ignored_columns": column_names,
    "soft_delete": boolean,
    "max_staleness": duration,
    "buckets": whole_number(1, _MOST_BUCKETS),
    "json_arrays": column_names,
    "jsonb_numbers": one_of(get_args(JsonbNumbers)),
    "unfit_key": one_of(get_args(UnfitKey)),
    "masked_columns": masks,
    "renamed_columns": renames,
    "keep": days,
    **BIGTABLE_OPTIONS,
}


def _filled_in(template: str, source_table: str) -> str:
    """Return a name. A table without a schema has neither that nor what joins it to the rest."""
    schema, _, table = source_table.rpartition(".")
    if not schema:
        template = _NO_SCHEMA.sub("", template)
    return template.replace("{schema}", schema).replace("{table}", table).replace(".", "_")


def _heading(name: str) -> str:
    return f'[tables."{name.translate(_ESCAPED)}"]'


def _is_pattern(name: str) -> bool:
    return any(letter in name for letter in "*?[")
