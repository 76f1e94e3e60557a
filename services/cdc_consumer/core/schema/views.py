"""The view over a table that is appended to: what it is called, what it shows, and what is said of it."""

from collections.abc import Sequence

from services.cdc_consumer.core.schema.entries import once_view_query
from services.cdc_consumer.core.schema.history import CHANGELOG_SUFFIX, history_view_query
from services.cdc_consumer.core.schema.tables import TableDefinition


def view_name(definition: TableDefinition) -> str:
    """Return the name of the view over a history or a table of entries."""
    suffix = "_changelog_once" if definition.entries else "_history"
    return definition.name.removesuffix(CHANGELOG_SUFFIX) + suffix


def view_query(changelog: str, columns: Sequence[str], definition: TableDefinition) -> str:
    """Return the view, by the full name of its table (``project.dataset.table``) and all its columns."""
    query = once_view_query if definition.entries else history_view_query
    return query(changelog, columns, definition.primary_key)


def view_description(definition: TableDefinition) -> str:
    """Return what the view is for, in the words of its description."""
    return "Each entry once" if definition.entries else "How long each version of a row held"
