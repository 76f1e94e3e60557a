"""Where the changes of a source table go: its mirror, its history or both, under which names, with which columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from services.cdc_consumer.core.schema.entries import entries_definition
from services.cdc_consumer.core.schema.history import CHANGELOG_SUFFIX, history_definition
from services.cdc_consumer.core.schema.masked_columns import masked_columns_of
from services.cdc_consumer.core.schema.tables import (
    TableColumn,
    TableDefinition,
    check_names,
    checked_name,
    mirror_definition,
    shown_name,
    source_columns,
)
from services.cdc_consumer.core.types.masks import MASKABLE, ColumnMask, MaskKey
from services.cdc_consumer.core.types.types import is_known, json_of, with_exact_numbers
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.tables_file import Mode, TableOptions, TablesFile


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be made of source tables: the tables file, and the consumer's own dataset."""

    file: TablesFile = field(default_factory=TablesFile)
    dataset: str = ""
    mask_key: MaskKey | None = None
    """None: no column is masked by a digest, or no value is read."""


_VALUES: Final = "value"
"""The column of a change log that holds whatever a cell holds."""
_UNFIT_KEY: Final = (Reason.KEY_NOT_REPRESENTABLE, Reason.TOO_MANY_COLUMNS)
EVERYTHING: Final = Plan()
"""Without a file: every table is mirrored."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where the changes of one column list go."""

    header: Header = field(compare=False)
    """One of those that ask for this; others differ in what does not matter here."""
    parsed: tuple[TableColumn, ...]
    """The source's columns that are kept, with the types that they have there."""
    kept: tuple[TableColumn, ...]
    """The same with the types and names that they have in BigQuery."""
    ignored: frozenset[str]
    masks: Mapping[str, ColumnMask] = field(compare=False)
    """By the names at the source, as ``names``. Both follow from the columns and the tables file."""
    names: Mapping[str, str] = field(compare=False)
    """What columns are called in BigQuery that have another name there."""
    unknown: tuple[str, ...] = field(compare=False)
    """Columns that the tables file names for this very table, which it does not have: misspelt, or gone."""
    of_unknown_type: tuple[tuple[str, str], ...] = field(compare=False)
    """Columns that are written as text because this version does not know their type, and that type."""
    unfit_key: str = field(compare=False)
    """Why a history alone is kept of a table that was to have a mirror; empty: it is not so."""
    mirror: TableDefinition | None
    history: TableDefinition | None
    """Or the table of entries."""
    soft_delete: bool

    @property
    def key(self) -> list[TableColumn]:
        """Return the columns that are in the key objects, in the table's order."""
        return [column for column in self.parsed if column.name in self.header.primary_key]

    @property
    def rest(self) -> list[TableColumn]:
        """Return the columns that are in the row objects."""
        return [column for column in self.parsed if column.name not in self.header.primary_key]


def destinations(header: Header, plan: Plan = EVERYTHING) -> Destinations | None:
    """Return where the changes under a header go; None if their table is left out, or only images of it are.

    Images make a mirror, whatever else is asked for, and nothing where none is; entries are appended in every mode.
    PoisonRecordError where BigQuery could not hold them, or a mask or name does not fit; MisconfiguredError where the
    tables file ignores, masks or renames a column of the key.
    """
    if not plan.file.included(header.table):
        return None
    options = plan.file.options(header.table)
    if header.content == "images" and options.mode == "history":
        return None
    unwanted = {name.lower() for name in options.ignored_columns}
    plan.file.refuse_changed_keys(header.table, header.primary_key)
    ignored = frozenset(column.name for column in header.columns if column.name.lower() in unwanted)
    as_json = {name.lower() for name in options.json_arrays}
    parsed, mode, unfit_key = _parsed(header, ignored, options)
    if options.jsonb_numbers == "text":
        parsed = [replace(each, type=with_exact_numbers(each.type)) for each in parsed]
    masks, names = _masks(header, parsed, options, plan), _names(parsed, options)
    kept = [
        replace(each, type=json_of(each.type)) if each.type.element and each.name.lower() in as_json else each
        for each in parsed
    ]
    kept = [replace(each, name=names.get(each.name, each.name)) for each in kept]
    if names:
        _refuse_taken_names(header, kept, plan.file)
    there = {column.name.lower() for column in header.columns}
    unknown = tuple(sorted(name for name in plan.file.columns_named_for(header.table) if name.lower() not in there))
    if header.content != "changes" and options.mode == "both":
        unknown = ()  # one may be a column of the images, or of the entries, which differ
    name = checked_name(options.name, header.table)
    dataset = "" if options.dataset in (None, plan.dataset) else options.dataset or ""
    mirror = history = None
    if header.content == "entries":
        history = entries_definition(header, name, kept, dataset)
    elif mode != "history":
        mirror = mirror_definition(header, name, kept, dataset, options.max_staleness, soft_delete=options.soft_delete)
    if header.content == "changes" and mode != "mirror":
        history = replace(history_definition(header, name, kept, dataset), instead_of=name if mode == "history" else "")
    if history is not None:
        history = replace(history, keep=options.keep)
    masked_columns = masked_columns_of(header.table, options, plan.file, plan.mask_key)
    mirror, history = (each and replace(each, masked_columns=masked_columns) for each in (mirror, history))
    soft_delete = options.soft_delete and mirror is not None
    unknown_types = tuple(
        (one.name, one.type.googlesql) for one in parsed if not is_known(one.type.element or one.type)
    )
    return Destinations(
        header,
        tuple(parsed),
        tuple(kept),
        ignored,
        masks,
        names,
        unknown,
        unknown_types,
        unfit_key,
        mirror,
        history,
        soft_delete,
    )


def _masks(
    header: Header, parsed: Sequence[TableColumn], options: TableOptions, plan: Plan
) -> Mapping[str, ColumnMask]:
    """Return the masks of the columns that are there; UNSUPPORTED_TYPE where one does not fit its column's type."""
    wanted = {column.lower(): (column, mask) for column, mask in options.masked_columns}
    masks: dict[str, ColumnMask] = {}
    for each in parsed:
        if each.name.lower() not in wanted:
            continue
        written, mask = wanted[each.name.lower()]
        if mask.kind != "null" and each.type not in MASKABLE:
            kinds = ", ".join(kind.googlesql for kind in MASKABLE)
            raise PoisonRecordError(
                Reason.UNSUPPORTED_TYPE,
                f"{plan.file.where(header.table, 'masked_columns', written)}: column {each.name} of type "
                f'{each.type.googlesql} cannot be masked by "{mask}", which takes {kinds}: mask it by "null", or leave '
                "it out (ignored_columns); then replay",
            )
        masks[each.name] = ColumnMask(mask, each.type, plan.mask_key if mask.kind == "sha256" else None)
    if header.content == "entries" and options.masked_columns and not options.bigtable.strip_values:
        masked, there = {name.lower() for name in wanted}, {each.name.lower() for each in parsed}
        if not masked <= there and _VALUES in there - masked:
            raise MisconfiguredError(
                "change-log-not-masked",
                f"{plan.file.where(header.table, 'masked_columns')}: the change log of table {header.table} holds the "
                f"values of all cells in its column {_VALUES}, so also those that masked_columns masks in its mirror: "
                f'mask {_VALUES} = "null" too, or set strip_values = true, or mode = "mirror"',
            )
    return masks


def _names(parsed: Sequence[TableColumn], options: TableOptions) -> Mapping[str, str]:
    wanted = {column.lower(): name for column, name in options.renamed_columns}
    return {each.name: wanted[each.name.lower()] for each in parsed if each.name.lower() in wanted}


def _refuse_taken_names(header: Header, kept: Sequence[TableColumn], file: TablesFile) -> None:
    """Raise BAD_NAME where a column gets a name that is reserved, or that another one has."""
    try:
        check_names([each.name for each in kept])
    except PoisonRecordError as error:
        where = file.where(header.table, "renamed_columns")
        raise PoisonRecordError(error.reason, f"{where}: {error.detail}; choose another name, then replay") from None


def _parsed(header: Header, ignored: frozenset[str], options: TableOptions) -> tuple[Sequence[TableColumn], Mode, str]:
    """Return the columns of a header, the mode that its table has, and why that is not the one that was asked for."""
    try:
        return source_columns(header, ignored), options.mode, ""
    except PoisonRecordError as error:
        may_be_history = header.content == "changes" and "history" in (options.mode, options.unfit_key)
        if not may_be_history or error.reason not in _UNFIT_KEY:
            raise
        why = "" if options.mode == "history" else error.detail
        return source_columns(header, ignored, without_key=True), "history", why


def mirror_name(table: str, plan: Plan = EVERYTHING) -> tuple[str, str] | None:
    """Return the name of a source table's mirror and its dataset ("": the usual one), if it may have one.

    Whatever its columns are: of a table that does not fit any more there may be a mirror from before.
    """
    if not plan.file.included(table) or plan.file.options(table).mode == "history":
        return None
    return _place(table, plan)


def identity_of(header: Header, plan: Plan = EVERYTHING) -> str:
    """Return the identity of the table that changes under a header are for, whether BigQuery could hold it or not.

    The mirror where there are both; what the source calls it where there can be no table of the name.
    """
    place = _place(header.table, plan)
    if place is None:
        return shown_name(header.table)
    name, dataset = place
    history = header.content == "changes" and plan.file.options(header.table).mode == "history"
    suffix = CHANGELOG_SUFFIX if history or header.content == "entries" else ""
    return f"{dataset}.{name}{suffix}" if dataset else name + suffix


def _place(table: str, plan: Plan) -> tuple[str, str] | None:
    options = plan.file.options(table)
    try:
        name = checked_name(options.name, table)
    except PoisonRecordError:
        return None
    return name, "" if options.dataset in (None, plan.dataset) else options.dataset or ""
