"""Of which pipeline the dead letters are, in the database: a row for each name that is known."""

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from services.dead_letter.adapters.store.schema import pipeline
from services.dead_letter.core.pipeline import Pipeline, joined

_c = pipeline.c


def known(connection: Connection) -> Pipeline:
    """See `DeadLetterStore.pipeline`."""
    names = {row.part: row.name for row in connection.execute(select(_c.part, _c.name))}
    return Pipeline(subscription=names.get("subscription"), topic=names.get("topic"))


def join(connection: Connection, mine: Pipeline) -> Pipeline:
    """See `DeadLetterStore.join`; a process that joins just now is waited for, and is then the first."""
    for row in _rows(mine):
        connection.execute(_insert(connection).values(row).on_conflict_do_nothing(index_elements=["part"]))
    return joined(known(connection), mine)


def change(connection: Connection, new: Pipeline) -> Pipeline:
    """See `DeadLetterStore.change_pipeline`."""
    for row in _rows(new):
        anew = {"name": row["name"]}
        connection.execute(_insert(connection).values(row).on_conflict_do_update(index_elements=["part"], set_=anew))
    return known(connection)


def _rows(one: Pipeline) -> list[dict[str, str]]:
    parts = (("subscription", one.subscription), ("topic", one.topic))
    return [{"part": part, "name": name} for part, name in parts if name is not None]


def _insert(connection: Connection) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(pipeline) if connection.dialect.name == "postgresql" else sqlite.insert(pipeline)
