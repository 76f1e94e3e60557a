"""The two dialects of Spanner, and every statement of the reader whose text is not the same in both.

Source: Spanner, "Information schema for PostgreSQL-dialect databases", "Manage change streams", "Query change streams".
Parameters are named ``p1``, ``p2``... everywhere: GoogleSQL refers to them by ``@p1``, PostgreSQL by ``$1``.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
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
_GOOGLESQL: Final = {
    "default_schema": "",
    "own_schemas": "'INFORMATION_SCHEMA', 'SPANNER_SYS'",
    "now": "CURRENT_TIMESTAMP()",
    "p1": "@p1",
    "p2": "@p2",
    "within": "IN UNNEST",
    "is_all": "`ALL`",
    "all": "IF(`ALL`, 'YES', 'NO')",
    "is_whole": "ALL_COLUMNS",
    "whole": "IF(ALL_COLUMNS, 'YES', 'NO')",
    "by_state": "@{{FORCE_INDEX={index}}}",
    "create": "CREATE TABLE IF NOT EXISTS {name} (\n  {columns}\n) PRIMARY KEY ({key})",
    "quote": "",
    "text": "STRING(MAX)",
    "texts": "ARRAY<STRING(MAX)>",
    "state": "STRING(16)",
    "number": "INT64",
    "time": "TIMESTAMP",
    "commit_time": "TIMESTAMP",
    "pending": " OPTIONS (allow_commit_timestamp = true)",
}
_POSTGRESQL: Final = {
    "default_schema": "public",
    "own_schemas": "'information_schema', 'pg_catalog', 'spanner_sys'",
    "now": "CURRENT_TIMESTAMP",
    "p1": "$1",
    "p2": "$2",
    "within": "= ANY",
    "is_all": "\"all\" = 'YES'",
    "all": '"all"',
    "is_whole": "ALL_COLUMNS = 'YES'",
    "whole": "ALL_COLUMNS",
    "by_state": "/*@ FORCE_INDEX = {index} */",
    "create": "CREATE TABLE IF NOT EXISTS {name} (\n  {columns},\n  PRIMARY KEY ({key})\n)",
    "quote": '"',
    "text": "varchar",
    "texts": "varchar[]",
    "state": "varchar(16)",
    "number": "bigint",
    "time": "timestamptz",
    "commit_time": "SPANNER.COMMIT_TIMESTAMP",
    "pending": "",
}
"""What differs between the dialects, by the names that stand for it in the statements below."""


def stream_options(dialect: Dialect, options: str, *, new: bool = False) -> str:
    """Return how a statement says the options of a change stream: of a new one, or where one is altered."""
    if dialect is Dialect.GOOGLESQL:
        return f"OPTIONS ({options})" if new else f"SET OPTIONS ({options})"
    return f"WITH ({options})" if new else f"SET ({options})"


def quoted(dialect: Dialect, name: str) -> str:
    """Return a name as a statement has to write it: PostgreSQL takes what is not quoted for lower case."""
    return f'"{name}"' if dialect is Dialect.POSTGRESQL and name != name.lower() else name


def stream_grants(dialect: Dialect, stream: str, role: str) -> Sequence[str]:
    """Return the statements that let a database role read a change stream: "Fine-grained access control privileges"."""
    if dialect is Dialect.GOOGLESQL:
        return (
            f"GRANT SELECT ON CHANGE STREAM {stream} TO ROLE {role}",
            f"GRANT EXECUTE ON TABLE FUNCTION READ_{stream} TO ROLE {role}",
        )
    function, role = quoted(dialect, f"read_json_{stream}"), quoted(dialect, role)
    return (
        f"GRANT SELECT ON CHANGE STREAM {quoted(dialect, stream)} TO {role}",
        f"GRANT EXECUTE ON FUNCTION spanner.{function} TO {role}",
    )


# Names that are not quoted may be in any case, in both dialects.
_KEYS: Final = """SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_ORDERING
FROM INFORMATION_SCHEMA.INDEX_COLUMNS AS c{of_stream}
WHERE c.INDEX_TYPE = 'PRIMARY_KEY' ORDER BY c.ORDINAL_POSITION"""
_COLUMNS: Final = """SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.SPANNER_TYPE, c.ORDINAL_POSITION,
  c.IS_GENERATED != 'NEVER', c.COLUMN_DEFAULT IS NOT NULL OR c.IS_IDENTITY = 'YES', c.IS_NULLABLE = 'YES'
FROM INFORMATION_SCHEMA.COLUMNS AS c{of_stream}
WHERE c.TABLE_SCHEMA NOT IN ({own_schemas})
ORDER BY c.ORDINAL_POSITION"""
_OF_STREAM: Final = """ JOIN INFORMATION_SCHEMA.CHANGE_STREAM_TABLES AS t
ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME AND t.CHANGE_STREAM_NAME = {p1}"""
_CATALOG: Final = {
    # of tables that no schema was named for; their records name none either
    "default_schema": "{default_schema}",
    "now": "SELECT {now}",
    "stream": "SELECT {is_all} FROM INFORMATION_SCHEMA.CHANGE_STREAMS WHERE CHANGE_STREAM_NAME = {p1}",
    "options": """SELECT OPTION_NAME, OPTION_VALUE FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS
WHERE CHANGE_STREAM_NAME = {p1}""",
    "tables": """SELECT TABLE_SCHEMA, TABLE_NAME, {is_whole} FROM INFORMATION_SCHEMA.CHANGE_STREAM_TABLES
WHERE CHANGE_STREAM_NAME = {p1}""",
    "columns": """SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.CHANGE_STREAM_COLUMNS
WHERE CHANGE_STREAM_NAME = {p1}""",
    "all_tables": """SELECT TABLE_SCHEMA, TABLE_NAME, TRUE FROM INFORMATION_SCHEMA.TABLES
WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ({own_schemas})""",
    # Of every table, in its order: what it is called, its type and place, is it generated, has it a default, may it be
    # NULL. The same of the tables alone that the stream names.
    "all_keys": _KEYS.replace("{of_stream}", ""),
    "all_columns": _COLUMNS.replace("{of_stream}", ""),
    "keys_of_stream": _KEYS.replace("{of_stream}", _OF_STREAM),
    "columns_of_stream": _COLUMNS.replace("{of_stream}", _OF_STREAM),
    # All of this at once, but for `all_tables`: of the tables alone whose names, without their schemas, are the second
    # parameter. Each row says of what it is: a schema, a table, a name, a text, a place and whether a column is
    # generated.
    "of_tables": """SELECT 'stream', '', '', '', {all}, 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAMS WHERE CHANGE_STREAM_NAME = {p1}
UNION ALL SELECT 'option', '', '', OPTION_NAME, OPTION_VALUE, 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS WHERE CHANGE_STREAM_NAME = {p1}
UNION ALL SELECT 'table', TABLE_SCHEMA, TABLE_NAME, '', {whole}, 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAM_TABLES WHERE CHANGE_STREAM_NAME = {p1} AND TABLE_NAME {within}({p2})
UNION ALL SELECT 'watched', TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, '', 0, FALSE
FROM INFORMATION_SCHEMA.CHANGE_STREAM_COLUMNS WHERE CHANGE_STREAM_NAME = {p1} AND TABLE_NAME {within}({p2})
UNION ALL SELECT 'key', TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_ORDERING, ORDINAL_POSITION, FALSE
FROM INFORMATION_SCHEMA.INDEX_COLUMNS WHERE INDEX_TYPE = 'PRIMARY_KEY' AND TABLE_NAME {within}({p2})
UNION ALL SELECT 'column', TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, SPANNER_TYPE, ORDINAL_POSITION,
  IS_GENERATED != 'NEVER'
FROM INFORMATION_SCHEMA.COLUMNS
WHERE TABLE_SCHEMA NOT IN ({own_schemas}) AND TABLE_NAME {within}({p2})""",
}


@cache
def catalog_sql(dialect: Dialect) -> Mapping[str, str]:
    """Return what is asked of the information schema, by its name. The change stream's name is the parameter."""
    names = _GOOGLESQL if dialect is Dialect.GOOGLESQL else _POSTGRESQL
    return {what: text.format(**names) for what, text in _CATALOG.items()}


_PARTITIONS: Final = """SELECT p.token, p.parents,
  ARRAY(SELECT parent.token FROM UNNEST(p.parents) AS name JOIN {table} AS parent ON parent.token = name
        WHERE parent.state = 'FINISHED') AS finished_parents,
  p.start_timestamp, p.state, p.watermark, p.owner, p.lease_until, p.fencing, p.load, {now} AS now,
  (SELECT MAX(topic) FROM {topic}) AS topic
FROM {table}{hint} AS p
WHERE """
_SHAPES: Final = """SELECT s.source_table, s.shape, s.needs_resync, s.since, s.looked_at,
  p.since AS paused_since, p.paused_at, p.resumed_at
FROM {shapes} AS s LEFT JOIN {pauses} AS p ON p.source_table = s.source_table"""
_SNAPSHOTS: Final = """SELECT s.source_table, s.range_number, s.run, s.range_after, s.range_until, s.last_key,
  s.read_timestamp, s.first_read_timestamp, s.row_count, s.state, s.owner, s.lease_until, s.fencing,
  s.finished_at, {now} AS now, (SELECT MAX(topic) FROM {topic}) AS topic
FROM (SELECT 1 AS one) AS always LEFT JOIN {snapshots} AS s ON {which}
ORDER BY s.source_table, s.range_number"""
_STATEMENTS: Final = {
    "index": "{index_name}",
    # The names of the tables and of the index: those that there are. An index that is still being made is listed by
    # Spanner, and is not there: a query that names it fails.
    "exist": """SELECT table_name FROM information_schema.tables
WHERE table_schema = '{default_schema}' AND table_name {within}({p1})
UNION ALL SELECT index_name FROM information_schema.indexes
WHERE table_schema = '{default_schema}' AND index_name = '{index_name}' AND index_state = 'READ_WRITE'""",
    "now": "SELECT {now}",
    "survey": "SELECT {now}, ARRAY(SELECT owner FROM {readers} WHERE present_until >= {now})",
    "finished": "SELECT COUNT(*) FROM {table}{by_state} WHERE state = 'FINISHED'",
    "unfinished": _PARTITIONS.replace("{hint}", "{by_state}") + "p.state {unfinished}",
    "named": _PARTITIONS.replace("{hint}", "") + "p.token {within}({p1})",
    "streams": "SELECT DISTINCT change_stream FROM {table}",
    # Both stay true once they are: FINISHED is final, and who names a partition as a parent was inserted with its end.
    "forgettable": """SELECT p.token FROM {table}{by_state} AS p
WHERE p.state = 'FINISHED' AND p.finished_at < {p1}
  AND NOT EXISTS (SELECT 1 FROM {table}{by_state} AS child
                  WHERE child.state {unfinished} AND p.token {within}(child.parents))
LIMIT 1000""",
    "gone_readers": "SELECT owner FROM {readers} WHERE present_until < {p1}",
    "shapes": _SHAPES,
    "shapes_of": _SHAPES + " WHERE s.source_table {within}({p1})",
    # of tables that are pending resync, or were paused
    "pending_shapes": _SHAPES + " WHERE s.needs_resync IS NOT NULL OR p.since IS NOT NULL",
    "pauses": "SELECT source_table, since, paused_at, resumed_at FROM {pauses}",
    # always one row of each: so Spanner's time comes with an empty table, too
    "snapshots": _SNAPSHOTS.replace("{which}", "TRUE"),
    "snapshots_of": _SNAPSHOTS.replace("{which}", "s.source_table {within}({p1})"),
    # one row: the topic, and who reads
    "topic": """SELECT (SELECT MAX(topic) FROM {topic}),
  ARRAY(SELECT owner FROM {readers} WHERE present_until >= {now})""",
}
_SUFFIXES: Final = {
    "table": "",
    "readers": "_readers",
    "shapes": "_tables",
    "snapshots": "_snapshots",
    "pauses": "_pauses",
    "topic": "_topic",
    "index": "_by_state",
}


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


def _names(dialect: Dialect, table: str) -> dict[str, str]:
    """Return what stands for each name in the statements of a partition table and of the tables beside it."""
    names = dict(_GOOGLESQL if dialect is Dialect.GOOGLESQL else _POSTGRESQL)
    for what, suffix in _SUFFIXES.items():
        names[what] = f"{names['quote']}{table}{suffix}{names['quote']}"
    names["index_name"] = f"{table}_by_state"
    names["by_state"] = names["by_state"].format(**names)
    names["unfinished"] = "IN ('CREATED', 'SCHEDULED', 'RUNNING')"  # an index does not answer `!= 'FINISHED'`
    return names


def partition_sql(dialect: Dialect, table: str) -> Mapping[str, str]:
    """Return the statements of a partition table of that name, and of the tables beside it, by their names.

    Tokens, tables and times are the parameter.
    """
    names = _names(dialect, table)
    return {what: text.format(**names) for what, text in _STATEMENTS.items()}


def partition_ddl(dialect: Dialect, table: str) -> Sequence[str]:
    """Return the statements that make a partition table of that name, the tables beside it and the index of states."""
    names = _names(dialect, table)
    tables = (
        names["create"].format(name=names[which], columns=columns.format(**names), key=key)
        for which, key, columns in _TABLES
    )
    return [*tables, _INDEX.format(**names)]
