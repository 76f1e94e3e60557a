"""What a `doctor` says of a change stream, of its tables and of the rights in a database, each with its cure.

The start checks (`schema.py`) refuse what is an error here, and stop at the first.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from services.spanner_reader.adapters.connection import Database
from services.spanner_reader.adapters.dialects import Dialect, quoted, stream_options
from services.spanner_reader.adapters.schema import EXCLUDING, TXN_EXCLUSION, StreamDefinition
from services.spanner_reader.core.changes import WHOLE_ROW
from services.spanner_reader.core.shapes import TableShape
from shared.runtime.findings import Finding, Level

MIRRORED_TYPES: Final = frozenset(
    {
        *("BOOL", "INT64", "FLOAT64", "FLOAT32", "NUMERIC", "STRING", "BYTES"),
        *("DATE", "TIMESTAMP", "JSON", "PG_NUMERIC", "UUID"),
    }
)
"""What the consumer's type map takes, arrays of these too (ARCHITECTURE.md); a test holds the two together."""
MOST_KEY_COLUMNS: Final = 16
MOST_COLUMNS: Final = 9_998
"""BigQuery's limit of columns in a table, less the two that every mirror has beside its own."""

_WHOLE_ROWS: Final = "value_capture_type = 'NEW_ROW'"
_A_WEEK: Final = "retention_period = '7d'"
_TEXT_KEYS: Final = ("BYTES", "FLOAT64", "FLOAT32")
_READS: Final = (
    "spanner.sessions.create",
    "spanner.databases.select",
    "spanner.databases.beginReadOnlyTransaction",
)
_WRITES: Final = (
    *_READS,
    "spanner.databases.beginOrRollbackReadWriteTransaction",
    "spanner.databases.write",
)
_CHANGES: Final = "spanner.databases.updateDdl"
_ENOUGH: Final = timedelta(days=3)
"""A weekend, and a day to notice."""


def inspect_stream(name: str, definition: StreamDefinition) -> Iterator[Finding]:
    """Look at every option of a change stream."""
    what, dialect = f"stream {name}", definition.dialect
    alter = f"ALTER CHANGE STREAM {quoted(dialect, name)} "
    watching = "everything" if definition.watches_everything else "the tables it names"
    yield Finding(Level.OK, what, f"is there and watches {watching}")
    if definition.value_capture_type in WHOLE_ROW:
        yield Finding(Level.OK, f"{what}: capture type", definition.value_capture_type)
    else:
        yield Finding(
            Level.ERROR,
            f"{what}: capture type",
            f"{definition.value_capture_type}: updates carry only what changed, and an upsert of that blanks the rest",
            f"{alter}{stream_options(dialect, _WHOLE_ROWS)}\nand start after that statement",
        )
    excluding = sorted(definition.exclusions & set(EXCLUDING))
    if excluding:
        off = stream_options(dialect, ", ".join(f"{each} = false" for each in excluding))
        yield Finding(
            Level.ERROR,
            f"{what}: exclusions",
            f"{', '.join(excluding)}: what is left out never reaches BigQuery",
            f"{alter}{off}\nand start after that statement",
        )
    elif TXN_EXCLUSION in definition.exclusions:
        yield Finding(
            Level.WARNING,
            f"{what}: exclusions",
            f"{TXN_EXCLUSION}: transactions that ask to be left out never reach BigQuery",
            f"{alter}{stream_options(dialect, f'{TXN_EXCLUSION} = false')}",
        )
    else:
        yield Finding(Level.OK, f"{what}: exclusions", "none")
    if definition.partition_mode == "IMMUTABLE_KEY_RANGE":
        yield Finding(Level.OK, f"{what}: partition mode", definition.partition_mode)
    else:
        yield Finding(
            Level.ERROR,
            f"{what}: partition mode",
            f"{definition.partition_mode}, which this version does not read",
            "it cannot be altered: create another stream without that option, and name it in CHANGE_STREAM",
        )
    yield _retention(what, alter, definition)


def inspect_table(name: str, table: TableShape, alter_stream: str) -> Iterator[Finding]:
    """Look at a watched table: its key, its types, its size."""
    what = f"table {name}"
    seen = list(_key(what, table, alter_stream))
    unknown = [
        f"{column.name} {column.type}"
        for column in table.columns
        if column.watched and _element(column.type) not in MIRRORED_TYPES
    ]
    if unknown:
        seen.append(
            Finding(
                Level.ERROR,
                f"{what}: types",
                f"{', '.join(unknown)}: BigQuery has no column for that, so every change of the table becomes a dead "
                "letter (unsupported_type)",
                f"{alter_stream}, with the other columns of the table in parentheses, or the table in the tables "
                "file's `exclude`",
            )
        )
    watched = len(table.watched_names)
    if watched > MOST_COLUMNS:
        seen.append(
            Finding(
                Level.ERROR,
                f"{what}: columns",
                f"{watched}, and BigQuery takes {MOST_COLUMNS} beside ours",
                f"{alter_stream}, with fewer of its columns in parentheses",
            )
        )
    if all(one.level is Level.OK for one in seen):
        yield Finding(Level.OK, what, "; ".join(one.detail for one in seen))
    else:
        yield from seen


async def inspect_rights(database: Database, *, writes: bool, makes_tables: bool) -> Finding:
    """Look whether this identity may do what the reader does in a database."""
    what = f"rights on {database.name.rpartition('/')[2]}"
    wanted = [*(_WRITES if writes else _READS), *([_CHANGES] if makes_tables else [])]
    granted = await database.granted(wanted)
    if granted is None:
        return Finding(Level.OK, what, "not known here: an emulator has no rights")
    missing = [each for each in wanted if each not in granted]
    if not missing:
        return Finding(Level.OK, what, ", ".join(wanted))
    role = "databaseUser" if writes or makes_tables else "databaseReader"
    _projects, project, _instances, instance, _databases, name = database.name.split("/")
    return Finding(
        Level.ERROR,
        what,
        f"this identity lacks {', '.join(missing)}",
        f"gcloud spanner databases add-iam-policy-binding {name} --instance={instance} --project={project} "
        f"--member=IDENTITY --role=roles/spanner.{role}",
    )


def _retention(what: str, alter: str, definition: StreamDefinition) -> Finding:
    longer = f"{alter}{stream_options(definition.dialect, _A_WEEK)}"
    if not definition.retention_is_set:
        return Finding(
            Level.WARNING,
            f"{what}: retention",
            "not set: what Spanner then keeps was a day once and is seven days for new streams; a day is counted on",
            longer,
        )
    if definition.retention < _ENOUGH:
        return Finding(
            Level.WARNING,
            f"{what}: retention",
            f"{definition.retention}: a reader that is away for longer loses what lies between",
            longer,
        )
    return Finding(Level.OK, f"{what}: retention", str(definition.retention))


def _key(what: str, table: TableShape, alter_stream: str) -> Iterator[Finding]:
    key: Sequence[tuple[str, str]] = table.key
    if not key:
        yield Finding(
            Level.ERROR,
            f"{what}: key",
            "has no primary key: there is nothing to upsert by",
            f"{alter_stream}, or a key",
        )
        return
    if len(key) > MOST_KEY_COLUMNS:
        yield Finding(
            Level.ERROR,
            f"{what}: key",
            f"{len(key)} columns, and BigQuery takes {MOST_KEY_COLUMNS}",
            alter_stream,
        )
    nullable = [column.name for column in table.columns if column.is_key and column.nullable]
    if nullable:
        yield Finding(
            Level.WARNING,
            f"{what}: key",
            f"{', '.join(nullable)} may be NULL: a change with NULL in its key becomes a dead letter "
            "(key_not_representable), for no BigQuery key holds NULL",
            _not_null(what, nullable),
        )
    texts = [f"{name} ({kind})" for name, kind in key if kind in _TEXT_KEYS]
    becomes = f"; a STRING in BigQuery: {', '.join(texts)}" if texts else ""
    yield Finding(Level.OK, f"{what}: key", ", ".join(name for name, _kind in key) + becomes)


def _not_null(what: str, columns: Sequence[str]) -> str:
    names: Mapping[bool, str] = {True: "that column", False: "those columns"}
    return f"write no NULL into {names[len(columns) == 1]}: make them NOT NULL where {what} is made"


def _element(type_name: str) -> str:
    return type_name.removeprefix("ARRAY<").removesuffix(">") if type_name.startswith("ARRAY<") else type_name


def alter_stream_to_leave_out(name: str, dialect: Dialect) -> str:
    """Return how a table, or a column of it, is kept out of a stream."""
    return f"leave it out with ALTER CHANGE STREAM {quoted(dialect, name)} SET FOR ..."
