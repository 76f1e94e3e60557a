"""The two dialects of Spanner, and every statement of the reader whose text is not the same in both.

Source: Spanner, "Information schema for PostgreSQL-dialect databases", "Manage change streams", "Query change streams".
Parameters are named ``p1``, ``p2``... everywhere: GoogleSQL refers to them by ``@p1``, PostgreSQL by ``$1``.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Dialect(Enum):
    """A database's dialect, by the name that its own information schema gives it."""

    GOOGLESQL = "GOOGLE_STANDARD_SQL"
    POSTGRESQL = "POSTGRESQL"

    @property
    def quote(self) -> str:
        """Return what stands around a name, whatever it is."""
        return '"' if self is Dialect.POSTGRESQL else "`"


DIALECT: Final = "SELECT option_value FROM information_schema.database_options WHERE option_name = 'database_dialect'"
"""In both dialects alike."""


@dataclass(frozen=True, slots=True)
class CatalogSql:
    """What is asked of the information schema. The change stream's name is the parameter."""

    default_schema: str
    """Of tables that no schema was named for; their records name none either."""
    now: str
    stream: str
    options: str
    tables: str
    columns: str
    all_tables: str
    all_keys: str
    all_columns: str
    """Of every table, in its order: what it is called, its type and place, is it generated, has it a default, may it
    be NULL."""
    keys_of_stream: str
    columns_of_stream: str
    """The same of the tables alone that the stream names."""
    of_tables: str
    """All of this at once, but for ``all_tables``: of the tables alone whose names, without their schemas, are ``p2``.

    Each row says of what it is: a schema, a table, a name, a text, a place and whether a column is generated.
    """


_KEYS: Final = """SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_ORDERING
FROM INFORMATION_SCHEMA.INDEX_COLUMNS AS c{of_stream}
WHERE c.INDEX_TYPE = 'PRIMARY_KEY' ORDER BY c.ORDINAL_POSITION"""
_COLUMNS: Final = """SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.SPANNER_TYPE, c.ORDINAL_POSITION,
  c.IS_GENERATED != 'NEVER', c.COLUMN_DEFAULT IS NOT NULL OR c.IS_IDENTITY = 'YES', c.IS_NULLABLE = 'YES'
FROM INFORMATION_SCHEMA.COLUMNS AS c{of_stream}
WHERE c.TABLE_SCHEMA NOT IN ('INFORMATION_SCHEMA', 'SPANNER_SYS')
ORDER BY c.ORDINAL_POSITION"""
_OF_STREAM: Final = """ JOIN INFORMATION_SCHEMA.CHANGE_STREAM_TABLES AS t
ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME AND t.CHANGE_STREAM_NAME = @p1"""
_OF_TABLES: Final = """SELECT 'stream', '', '', '', IF(`ALL`, 'YES', 'NO'), 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAMS WHERE CHANGE_STREAM_NAME = @p1
UNION ALL SELECT 'option', '', '', OPTION_NAME, OPTION_VALUE, 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS WHERE CHANGE_STREAM_NAME = @p1
UNION ALL SELECT 'table', TABLE_SCHEMA, TABLE_NAME, '', IF(ALL_COLUMNS, 'YES', 'NO'), 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAM_TABLES WHERE CHANGE_STREAM_NAME = @p1 AND TABLE_NAME IN UNNEST(@p2)
UNION ALL SELECT 'watched', TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, '', 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAM_COLUMNS WHERE CHANGE_STREAM_NAME = @p1 AND TABLE_NAME IN UNNEST(@p2)
UNION ALL SELECT 'key', TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_ORDERING, ORDINAL_POSITION, FALSE
FROM INFORMATION_SCHEMA.INDEX_COLUMNS WHERE INDEX_TYPE = 'PRIMARY_KEY' AND TABLE_NAME IN UNNEST(@p2)
UNION ALL SELECT 'column', TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, SPANNER_TYPE, ORDINAL_POSITION,
  IS_GENERATED != 'NEVER'
FROM INFORMATION_SCHEMA.COLUMNS
WHERE TABLE_SCHEMA NOT IN ('INFORMATION_SCHEMA', 'SPANNER_SYS') AND TABLE_NAME IN UNNEST(@p2)"""
_GOOGLESQL: Final = CatalogSql(
    default_schema="",
    now="SELECT CURRENT_TIMESTAMP()",
    stream="SELECT `ALL` FROM INFORMATION_SCHEMA.CHANGE_STREAMS WHERE CHANGE_STREAM_NAME = @p1",
    options="""SELECT OPTION_NAME, OPTION_VALUE FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS
WHERE CHANGE_STREAM_NAME = @p1""",
    tables="""SELECT TABLE_SCHEMA, TABLE_NAME, ALL_COLUMNS FROM INFORMATION_SCHEMA.CHANGE_STREAM_TABLES
WHERE CHANGE_STREAM_NAME = @p1""",
    columns="""SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.CHANGE_STREAM_COLUMNS
WHERE CHANGE_STREAM_NAME = @p1""",
    all_tables="""SELECT TABLE_SCHEMA, TABLE_NAME, TRUE FROM INFORMATION_SCHEMA.TABLES
WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('INFORMATION_SCHEMA', 'SPANNER_SYS')""",
    all_keys=_KEYS.format(of_stream=""),
    all_columns=_COLUMNS.format(of_stream=""),
    keys_of_stream=_KEYS.format(of_stream=_OF_STREAM),
    columns_of_stream=_COLUMNS.format(of_stream=_OF_STREAM),
    of_tables=_OF_TABLES,
)
_PG_KEYS: Final = """SELECT c.table_schema, c.table_name, c.column_name, c.column_ordering
FROM information_schema.index_columns AS c{of_stream}
WHERE c.index_type = 'PRIMARY_KEY' ORDER BY c.ordinal_position"""
_PG_COLUMNS: Final = """SELECT c.table_schema, c.table_name, c.column_name, c.spanner_type, c.ordinal_position,
  c.is_generated != 'NEVER', c.column_default IS NOT NULL OR c.is_identity = 'YES', c.is_nullable = 'YES'
FROM information_schema.columns AS c{of_stream}
WHERE c.table_schema NOT IN ('information_schema', 'pg_catalog', 'spanner_sys')
ORDER BY c.ordinal_position"""
_PG_OF_STREAM: Final = """ JOIN information_schema.change_stream_tables AS t
ON t.table_schema = c.table_schema AND t.table_name = c.table_name AND t.change_stream_name = $1"""
_PG_OF_TABLES: Final = """SELECT 'stream', '', '', '', "all", 0, FALSE
FROM information_schema.change_streams WHERE change_stream_name = $1
UNION ALL SELECT 'option', '', '', option_name, option_value, 0, FALSE
FROM information_schema.change_stream_options WHERE change_stream_name = $1
UNION ALL SELECT 'table', table_schema, table_name, '', all_columns, 0, FALSE
FROM information_schema.change_stream_tables WHERE change_stream_name = $1 AND table_name = ANY($2)
UNION ALL SELECT 'watched', table_schema, table_name, column_name, '', 0, FALSE
FROM information_schema.change_stream_columns WHERE change_stream_name = $1 AND table_name = ANY($2)
UNION ALL SELECT 'key', table_schema, table_name, column_name, column_ordering, ordinal_position, FALSE
FROM information_schema.index_columns WHERE index_type = 'PRIMARY_KEY' AND table_name = ANY($2)
UNION ALL SELECT 'column', table_schema, table_name, column_name, spanner_type, ordinal_position,
  is_generated != 'NEVER'
FROM information_schema.columns
WHERE table_schema NOT IN ('information_schema', 'pg_catalog', 'spanner_sys') AND table_name = ANY($2)"""
_POSTGRESQL: Final = CatalogSql(
    default_schema="public",
    now="SELECT CURRENT_TIMESTAMP",
    stream="""SELECT "all" = 'YES' FROM information_schema.change_streams WHERE change_stream_name = $1""",
    options="""SELECT option_name, option_value FROM information_schema.change_stream_options
WHERE change_stream_name = $1""",
    tables="""SELECT table_schema, table_name, all_columns = 'YES' FROM information_schema.change_stream_tables
WHERE change_stream_name = $1""",
    columns="""SELECT table_schema, table_name, column_name FROM information_schema.change_stream_columns
WHERE change_stream_name = $1""",
    all_tables="""SELECT table_schema, table_name, TRUE FROM information_schema.tables
WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('information_schema', 'pg_catalog', 'spanner_sys')""",
    all_keys=_PG_KEYS.format(of_stream=""),
    all_columns=_PG_COLUMNS.format(of_stream=""),
    keys_of_stream=_PG_KEYS.format(of_stream=_PG_OF_STREAM),
    columns_of_stream=_PG_COLUMNS.format(of_stream=_PG_OF_STREAM),
    of_tables=_PG_OF_TABLES,
)


def catalog_sql(dialect: Dialect) -> CatalogSql:
    """Return the questions to the information schema."""
    return _GOOGLESQL if dialect is Dialect.GOOGLESQL else _POSTGRESQL


def stream_options(dialect: Dialect, options: str, *, new: bool = False) -> str:
    """Return how a statement says the options of a change stream: of a new one, or where one is altered."""
    if dialect is Dialect.GOOGLESQL:
        return f"OPTIONS ({options})" if new else f"SET OPTIONS ({options})"
    return f"WITH ({options})" if new else f"SET ({options})"


def quoted(dialect: Dialect, name: str) -> str:
    """Return a name as a statement has to write it: PostgreSQL takes what is not quoted for lower case."""
    return f'"{name}"' if dialect is Dialect.POSTGRESQL and name != name.lower() else name


_PARTITIONS: Final = """SELECT p.token, p.parents,
  ARRAY(SELECT parent.token FROM {parents_of_p} AS name JOIN {table} AS parent ON parent.token = name
        WHERE parent.state = 'FINISHED') AS finished_parents,
  p.start_timestamp, p.state, p.watermark, p.owner, p.lease_until, p.fencing, p.load, {now} AS now
FROM {table}{by_state} AS p"""
_UNFINISHED: Final = "IN ('CREATED', 'SCHEDULED', 'RUNNING')"
"""Not `!= 'FINISHED'`, which an index does not answer."""
# Both stay true once they are: FINISHED is final, and who names a partition as a parent was inserted with its end.
_FORGETTABLE: Final = """SELECT p.token FROM {table}{by_state} AS p
WHERE p.state = 'FINISHED' AND p.finished_at < {p1}
  AND NOT EXISTS (SELECT 1 FROM {table}{by_state} AS child
                  WHERE child.state {unfinished} AND {p_parent_of_child})
LIMIT 1000"""
_EXIST: Final = """SELECT table_name FROM information_schema.tables
WHERE table_schema = '{default_schema}' AND {named}
UNION ALL SELECT index_name FROM information_schema.indexes
WHERE table_schema = '{default_schema}' AND index_name = '{index}' AND index_state = 'READ_WRITE'"""
_SURVEY: Final = "SELECT {now}, ARRAY(SELECT owner FROM {readers} WHERE present_until >= {now})"
_FINISHED: Final = "SELECT COUNT(*) FROM {table}{by_state} WHERE state = 'FINISHED'"
_STREAMS: Final = "SELECT DISTINCT change_stream FROM {table}"
_SHAPES: Final = """SELECT s.source_table, s.shape, s.needs_resync, s.since, s.looked_at,
  p.since AS paused_since, p.paused_at, p.resumed_at
FROM {shapes} AS s LEFT JOIN {pauses} AS p ON p.source_table = s.source_table"""
_PAUSES: Final = "SELECT source_table, since, paused_at, resumed_at FROM {pauses}"
_TOPIC: Final = """SELECT (SELECT MAX(topic) FROM {topic}),
  ARRAY(SELECT owner FROM {readers} WHERE present_until >= {now})"""
_GONE_READERS: Final = "SELECT owner FROM {readers} WHERE present_until < {p1}"


_SNAPSHOTS: Final = """SELECT s.source_table, s.range_number, s.run, s.range_after, s.range_until, s.last_key,
  s.read_timestamp, s.first_read_timestamp, s.row_count, s.state, s.owner, s.lease_until, s.fencing,
  s.finished_at, {now} AS now
FROM (SELECT 1 AS one) AS always LEFT JOIN {snapshots} AS s ON {which}
ORDER BY s.source_table, s.range_number"""
_SUFFIXES: Final = {
    "table": "",
    "readers": "_readers",
    "shapes": "_tables",
    "snapshots": "_snapshots",
    "pauses": "_pauses",
    "topic": "_topic",
}


@dataclass(frozen=True, slots=True)
class PartitionSql:
    """The statements of a partition table and of the table of its readers."""

    create: tuple[str, ...]
    index: str
    """The name of the index of states."""
    exist: str
    """The names of the tables and of the index: those that there are.

    An index that is still being made is listed by Spanner, and is not there: a query that names it fails.
    """
    now: str
    survey: str
    """One row always, so that Spanner's time comes with an empty table, too."""
    finished: str
    unfinished: str
    named: str
    streams: str
    forgettable: str
    gone_readers: str
    shapes: str
    shapes_of: str
    """Of some tables, which are the parameter."""
    pending_shapes: str
    """Of tables that need re-sync, or were paused."""
    pauses: str
    topic: str
    """One row: the topic, and who reads."""


_TABLES: Final = (
    (
        "table",
        "token",
        """token {text} NOT NULL,
  change_stream {text} NOT NULL,
  parents {texts} NOT NULL,
  start_timestamp {time} NOT NULL,
  end_timestamp {time},
  state {state} NOT NULL,
  watermark {time} NOT NULL,
  owner {text},
  lease_until {time},
  fencing {number} NOT NULL,
  created_at {commit_time} NOT NULL{pending},
  scheduled_at {commit_time}{pending},
  running_at {commit_time}{pending},
  finished_at {commit_time}{pending},
  load {number}""",
    ),
    ("readers", "owner", "owner {text} NOT NULL, present_until {time} NOT NULL"),
    (
        "shapes",
        "source_table",
        """source_table {text} NOT NULL,
  shape {text} NOT NULL,
  needs_resync {text},
  since {time},
  looked_at {time} NOT NULL""",
    ),
    (
        "snapshots",
        "source_table, range_number",
        """source_table {text} NOT NULL,
  range_number {number} NOT NULL,
  run {number} NOT NULL,
  range_after {text},
  range_until {text},
  last_key {text},
  read_timestamp {time} NOT NULL,
  first_read_timestamp {time} NOT NULL,
  row_count {number} NOT NULL,
  state {state} NOT NULL,
  owner {text},
  lease_until {time},
  fencing {number} NOT NULL,
  requested_at {commit_time} NOT NULL{pending},
  finished_at {commit_time}{pending}""",
    ),
    (
        "pauses",
        "source_table",
        """source_table {text} NOT NULL,
  since {commit_time} NOT NULL{pending},
  paused_at {commit_time} NOT NULL{pending},
  resumed_at {commit_time}{pending}""",
    ),
    ("topic", "only_row", "only_row {number} NOT NULL, topic {text} NOT NULL"),
)
"""Each table, its key and its columns."""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS {index} ON {table} (state)"
_GOOGLESQL_CREATE: Final = "CREATE TABLE IF NOT EXISTS {name} (\n  {columns}\n) PRIMARY KEY ({key})"
_POSTGRESQL_CREATE: Final = "CREATE TABLE IF NOT EXISTS {name} (\n  {columns},\n  PRIMARY KEY ({key})\n)"
_GOOGLESQL_TYPES: Final = {
    "text": "STRING(MAX)",
    "texts": "ARRAY<STRING(MAX)>",
    "state": "STRING(16)",
    "number": "INT64",
    "time": "TIMESTAMP",
    "commit_time": "TIMESTAMP",
    "pending": " OPTIONS (allow_commit_timestamp = true)",
}
_POSTGRESQL_TYPES: Final = {
    "text": "varchar",
    "texts": "varchar[]",
    "state": "varchar(16)",
    "number": "bigint",
    "time": "timestamptz",
    "commit_time": "SPANNER.COMMIT_TIMESTAMP",
    "pending": "",
}


def partition_sql(dialect: Dialect, table: str) -> PartitionSql:
    """Return the statements of a partition table of that name; tokens and times are the parameter."""
    if dialect is Dialect.GOOGLESQL:
        create, types = _GOOGLESQL_CREATE, _GOOGLESQL_TYPES
        default_schema = ""
        names = {"now": "CURRENT_TIMESTAMP()", "p1": "@p1"}
        within = "{value} IN UNNEST({array})"
        parents, by_state = "UNNEST(p.parents)", "@{{FORCE_INDEX={index}}}"
    else:
        create, types = _POSTGRESQL_CREATE, _POSTGRESQL_TYPES
        default_schema = "public"
        names = {"now": "CURRENT_TIMESTAMP", "p1": "$1"}
        within = "{value} = ANY({array})"
        parents, by_state = "unnest(p.parents)", "/*@ FORCE_INDEX = {index} */"

    def one_of(value: str, array: str) -> str:
        return within.format(value=value, array=array)

    quote = "" if dialect is Dialect.GOOGLESQL else '"'
    for what, suffix in _SUFFIXES.items():
        names[what] = f"{quote}{table}{suffix}{quote}"
    index = f"{table}_by_state"
    names["index"] = f"{quote}{index}{quote}"
    by_state = by_state.format(**names)
    partitions, unfinished = (
        _PARTITIONS.format(**names, parents_of_p=parents, by_state=hint) for hint in ("", by_state)
    )
    tables = (
        create.format(name=names[which], columns=columns.format(**types), key=key) for which, key, columns in _TABLES
    )
    return PartitionSql(
        create=(*tables, _INDEX.format(**names)),
        index=index,
        exist=_EXIST.format(default_schema=default_schema, named=one_of("table_name", names["p1"]), index=index),
        now=f"SELECT {names['now']}",
        survey=_SURVEY.format(**names),
        finished=_FINISHED.format(**names, by_state=by_state),
        unfinished=f"{unfinished} WHERE p.state {_UNFINISHED}",
        named=f"{partitions} WHERE {one_of('p.token', names['p1'])}",
        streams=_STREAMS.format(**names),
        forgettable=_FORGETTABLE.format(
            **names, by_state=by_state, unfinished=_UNFINISHED, p_parent_of_child=one_of("p.token", "child.parents")
        ),
        gone_readers=_GONE_READERS.format(**names),
        shapes=_SHAPES.format(**names),
        shapes_of=f"{_SHAPES.format(**names)} WHERE {one_of('s.source_table', names['p1'])}",
        pending_shapes=f"{_SHAPES.format(**names)} WHERE s.needs_resync IS NOT NULL OR p.since IS NOT NULL",
        pauses=_PAUSES.format(**names),
        topic=_TOPIC.format(**names),
    )


@dataclass(frozen=True, slots=True)
class SnapshotSql:
    """What is asked of the table of snapshots: one row always, so that Spanner's time comes with an empty one, too."""

    all: str
    of_tables: str


def snapshot_sql(dialect: Dialect, partition_table: str) -> SnapshotSql:
    """Return the questions to the table of snapshots beside a partition table; tables are the parameter."""
    google = dialect is Dialect.GOOGLESQL
    quote = "" if google else '"'
    names = {
        "snapshots": f"{quote}{partition_table}{_SUFFIXES['snapshots']}{quote}",
        "now": "CURRENT_TIMESTAMP()" if google else "CURRENT_TIMESTAMP",
    }
    of_tables = "s.source_table IN UNNEST(@p1)" if google else "s.source_table = ANY($1)"
    return SnapshotSql(
        all=_SNAPSHOTS.format(**names, which="TRUE"), of_tables=_SNAPSHOTS.format(**names, which=of_tables)
    )
