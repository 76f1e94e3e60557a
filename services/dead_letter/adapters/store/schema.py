"""The tables of the dead letter store, as SQLAlchemy Core describes them. The migrations make them.

Times are nanoseconds since the epoch. Texts compare by their bytes in both databases. The bytes and attributes of a
dead letter are in a table of their own, so that no list reads them.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    text,
)


class ExactText(TypeDecorator[str]):
    """Any text, compared by its bytes. PostgreSQL holds no NUL: there it is written as two characters, in order."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Text:
        """Return the type of a dialect: without it PostgreSQL sorts by the language that it was installed in."""
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Write NUL as 01 01 and 01 as 01 02: texts sort as they did."""
        if value is None or dialect.name != "postgresql":
            return value
        return value.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Undo it."""
        if value is None or dialect.name != "postgresql" or "\x01" not in value:
            return value
        return value.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")


_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER numbers its rows by itself there

DECIDED: Final = "action NOT IN ('failed_again', 'values_shown', 'exported')"
"""The lines of the trail that are not repeated without end."""

metadata: Final = MetaData()

dead_letters: Final = Table(
    "letters",
    metadata,
    Column("n", _NUMBER, primary_key=True, autoincrement=True),
    Column("id", ExactText, nullable=False, unique=True),
    Column("state", ExactText, nullable=False),
    Column("group_id", ExactText, nullable=False),
    Column("reason", ExactText, nullable=False),
    Column("detail", ExactText, nullable=False),
    Column("table_name", ExactText, nullable=False),
    Column("row_key", ExactText, nullable=False),
    Column("sequence", ExactText, nullable=False),
    # the one form of a sequence, which sorts as its numbers do; empty where there is none, or none that is one
    Column("sequence_order", ExactText, nullable=False),
    Column("commit_timestamp", ExactText, nullable=False),
    Column("ordering_key", ExactText, nullable=False),
    Column("failed_in", ExactText, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("payload_bytes", BigInteger),
    Column("attempts", BigInteger, nullable=False),
    Column("replays", BigInteger, nullable=False),
    Column("first_failed_at", BigInteger, nullable=False),
    Column("last_failed_at", BigInteger, nullable=False),
    Column("arrived_at", BigInteger, nullable=False),
    Column("last_action_at", BigInteger, nullable=False),
    Column("edit_of", ExactText),
    Column("edited_as", ExactText),
    Column("claimed_by", ExactText),
    Column("claimed_until", BigInteger),
    # the replay that had claimed it when it failed again, and has not said yet that it sent it
    Column("lost_by", ExactText),
    # the dead letter whose replay it came from last; of a whole message that is another one
    Column("replay_of", ExactText),
    sqlite_autoincrement=True,  # a number is never used again, so that a page's place stays one
)

payloads: Final = Table(
    "letter_payloads",
    metadata,
    Column("n", _NUMBER, ForeignKey("letters.n", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("attributes", Text, nullable=False),  # a JSON object, in ASCII
    Column("data", LargeBinary, nullable=False),
)

deliveries: Final = Table(
    "letter_deliveries",
    metadata,
    Column("n", _NUMBER, ForeignKey("letters.n", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("message_id", ExactText, primary_key=True),
)

trail: Final = Table(
    "letter_trail",
    metadata,
    Column("k", _NUMBER, primary_key=True, autoincrement=True),
    Column("n", _NUMBER, ForeignKey("letters.n", ondelete="CASCADE"), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("who", ExactText, nullable=False),
    Column("action", ExactText, nullable=False),
    Column("result", ExactText, nullable=False),
    Column("more", Text, nullable=False),  # a JSON object, in ASCII
    Index("letter_trail_of", "n", "k"),
    Index("letter_trail_decisions", "n", "k", sqlite_where=text(DECIDED), postgresql_where=text(DECIDED)),
)

# Of which pipeline the dead letters are: a row for its subscription, and one for its topic.
pipeline: Final = Table(
    "letters_pipeline", metadata, Column("part", ExactText, primary_key=True), Column("name", ExactText, nullable=False)
)

_c = dead_letters.c
Index("letters_newest", _c.last_failed_at, _c.n)
Index("letters_by_state", _c.state, _c.last_failed_at, _c.n)
Index("letters_by_table", _c.table_name, _c.last_failed_at, _c.n)
Index("letters_by_reason", _c.reason, _c.last_failed_at, _c.n)
# All that groups are made of and mostly chosen by, so that they read no row.
BY_GROUP: Final = Index(
    "letters_by_group", _c.group_id, _c.last_failed_at, _c.n, _c.state, _c.first_failed_at, _c.reason, _c.table_name
)
Index("letters_by_key", _c.row_key, postgresql_using="hash")  # there a key may be too long for any other
Index("letters_by_sequence", _c.sequence_order)
Index("letters_in_numbers", _c.state, _c.reason, _c.table_name, _c.first_failed_at, _c.size)  # stats read no row
Index("letters_by_last_action", _c.last_action_at)
for _mark in (_c.claimed_by, _c.lost_by, _c.replay_of):
    Index(f"letters_{_mark.name}", _mark, sqlite_where=_mark.is_not(None), postgresql_where=_mark.is_not(None))
REPLAY_ORDER: Final = (_c.table_name, _c.row_key, _c.sequence_order, _c.first_failed_at, _c.n)
# PostgreSQL's indexes hold 2,704 bytes a row, less than a long table's name and a long key: there it is sorted.
Index("letters_in_replay_order", *REPLAY_ORDER).ddl_if(dialect="sqlite")
