"""What source tables would become under a tables file: each table in BigQuery, and what is left out and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from services.cdc_consumer.core.schema.destinations import Destinations, Plan, destinations
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.schema.views import view_name
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.tables_file import TablesFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPreview:
    """A column of a table in BigQuery."""

    name: str
    type: str
    source: str = ""
    """Its name at the source; empty: it is Millrace's own."""
    source_type: str = ""
    mask: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationPreview:
    """A table in BigQuery."""

    kind: str
    """``mirror``, ``history`` or ``change log``."""
    dataset: str
    name: str
    columns: tuple[ColumnPreview, ...]
    key: tuple[str, ...]
    """Of a history what its rows belong together by."""
    clustered_by: tuple[str, ...]
    partitioned_by: str = ""
    view: str = ""
    max_staleness: timedelta | None = None
    keep: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """What becomes of a source table."""

    source_table: str
    left_out: str = ""
    """Why there is nothing of it in BigQuery; empty: there is."""
    refused: str = ""
    """Why its changes could not be applied, and what fixes that; empty: they can."""
    tables: tuple[DestinationPreview, ...] = ()
    ignored_columns: tuple[str, ...] = ()
    ignored_by: str = ""
    """The line that leaves them out."""
    unknown_columns: tuple[str, ...] = ()
    """Those that the file names for this very table, which does not have them."""
    soft_delete: bool = False
    notes: tuple[str, ...] = field(default=())


def preview(header: Header, plan: Plan) -> TablePreview:
    """Return what becomes of the table of a header."""
    table, options = header.table, plan.file.options(header.table)
    if not plan.file.included(table):
        return left_out(table, plan.file)
    try:
        found = destinations(header, plan)
    except (MisconfiguredError, PoisonRecordError) as error:
        return TablePreview(source_table=table, refused=str(error))
    if found is None:
        return TablePreview(source_table=table, left_out='of images there is no history (mode = "history")')
    ignored = tuple(sorted(found.ignored))
    notes = [f"column {name}: this version does not know {kind}; it is text" for name, kind in found.of_unknown_type]
    if found.unfit_key:
        notes.append(f"a history instead of a mirror (unfit_key): {found.unfit_key}")
    made = (("mirror", found.mirror), ("change log" if header.content == "entries" else "history", found.history))
    return TablePreview(
        source_table=table,
        tables=tuple(_of(kind, one, found, plan) for kind, one in made if one is not None),
        ignored_columns=ignored,
        ignored_by=plan.file.where(table, "ignored_columns") if ignored and options.ignored_columns else "",
        unknown_columns=found.unknown,
        soft_delete=found.soft_delete,
        notes=tuple(notes),
    )


def unknown(source_table: str, why: str, file: TablesFile) -> TablePreview:
    """Return that a table cannot be described, which does not matter if it is left out."""
    if not file.included(source_table):
        return left_out(source_table, file)
    return TablePreview(source_table=source_table, refused=why)


def left_out(source_table: str, file: TablesFile) -> TablePreview:
    """Return that a table is left out, and by which list of the file."""
    excluding = file.excluding(source_table)
    why = f'exclude = "{excluding}" ({file.line(("exclude",))})' if excluding else "include does not name it"
    return TablePreview(source_table=source_table, left_out=why)


def without_clashes(previews: Iterable[TablePreview]) -> Sequence[TablePreview]:
    """Return previews in which of two source tables that would be one table the second is refused."""
    owners: dict[tuple[str, str], str] = {}
    found = []
    for one in previews:
        for table in one.tables:
            owner = owners.setdefault((table.dataset, table.name), one.source_table)
            if owner != one.source_table and not one.refused:
                both = f"{table.dataset}.{table.name} would be a table of {owner} too"
                why = f"{both}: give one of them a name or a dataset of its own"
                found.append(replace(one, refused=why))
                break
        else:
            found.append(one)
    return found


def _of(kind: str, definition: TableDefinition, found: Destinations, plan: Plan) -> DestinationPreview:
    source = {kept.name: parsed for parsed, kept in zip(found.parsed, found.kept, strict=True)}
    masks: Mapping[str, str] = {name: str(mask.mask) for name, mask in found.masks.items()}
    columns = []
    for column in definition.columns:
        from_source = source.get(column.name)
        columns.append(
            ColumnPreview(name=column.name, type=column.type.bigquery)
            if from_source is None
            else ColumnPreview(
                name=column.name,
                type=column.type.bigquery,
                source=from_source.name,
                source_type=from_source.type.googlesql,
                mask=masks.get(from_source.name, ""),
            )
        )
    return DestinationPreview(
        kind=kind,
        dataset=definition.dataset or plan.dataset,
        name=definition.name,
        columns=tuple(columns),
        key=definition.primary_key,
        clustered_by=definition.clustering,
        partitioned_by=definition.commit_timestamp if definition.append_only else "",
        view=view_name(definition) if definition.append_only else "",
        max_staleness=definition.max_staleness,
        keep=definition.keep,
    )
