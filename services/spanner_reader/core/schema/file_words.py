"""An inspection of the tables, with what the tables file says of them: what it leaves out counts as not watched."""

from collections.abc import Callable
from dataclasses import replace

from services.spanner_reader.core.schema.shapes import SchemaInspection, TableShape
from shared.contracts.tables_file import TableOptions


def excluding(
    inspection: SchemaInspection, included: Callable[[str], bool], options: Callable[[str], TableOptions] | None = None
) -> SchemaInspection:
    """Return an inspection in which what is not to be mirrored is not watched, with what is not written of the rest."""
    return replace(
        inspection, tables={name: _said(name, table, included, options) for name, table in inspection.tables.items()}
    )


def _said(
    name: str, table: TableShape, included: Callable[[str], bool], options: Callable[[str], TableOptions] | None
) -> TableShape:
    if not included(name):
        return replace(table, watched=False, left_out=table.watched)
    if options is None or not table.watched:
        return table
    said = options(name)
    ignored = {column.lower() for column in said.ignored_columns}
    columns = [replace(one, ignored=True) if one.name.lower() in ignored else one for one in table.columns]
    return replace(table, columns=tuple(columns), history=said.mode == "history")
