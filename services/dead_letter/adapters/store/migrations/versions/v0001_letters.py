"""The dead letters, their bytes, the messages that brought them, and their trail."""

import sqlalchemy as sa
from alembic import op

from services.dead_letter.adapters.store.schema import ExactText

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "letters",
        sa.Column("n", number, primary_key=True, autoincrement=True),
        sa.Column("id", ExactText, nullable=False, unique=True),
        *(_text(name) for name in ("state", "group_id", "reason", "detail", "table_name", "row_key")),
        *(_text(name) for name in ("sequence", "sequence_order", "commit_timestamp", "ordering_key", "failed_in")),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("payload_bytes", sa.BigInteger),
        *(_whole(name) for name in ("attempts", "replays")),
        *(_whole(name) for name in ("first_failed_at", "last_failed_at", "arrived_at", "last_action_at")),
        sa.Column("edit_of", ExactText),
        sa.Column("edited_as", ExactText),
        sa.Column("claimed_by", ExactText),
        sa.Column("claimed_until", sa.BigInteger),
        sa.Column("lost_by", ExactText),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "letter_payloads",
        _dead_letter_number(number, primary_key=True),
        sa.Column("attributes", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "letter_deliveries",
        _dead_letter_number(number, primary_key=True),
        sa.Column("message_id", ExactText, primary_key=True),
    )
    op.create_table(
        "letter_trail",
        sa.Column("k", number, primary_key=True, autoincrement=True),
        _dead_letter_number(number, primary_key=False),
        _whole("at"),
        *(_text(name) for name in ("who", "action", "result")),
        sa.Column("more", sa.Text, nullable=False),
    )
    _make_indexes()


def _make_indexes() -> None:
    op.create_index("letter_trail_of", "letter_trail", ["n", "k"])
    for name, columns in (
        ("letters_newest", ["last_failed_at", "n"]),
        ("letters_by_state", ["state", "last_failed_at", "n"]),
        ("letters_by_table", ["table_name", "last_failed_at", "n"]),
        ("letters_by_reason", ["reason", "last_failed_at", "n"]),
        ("letters_by_group", ["group_id", "last_failed_at", "n", "state", "first_failed_at", "reason", "table_name"]),
        ("letters_by_sequence", ["sequence_order"]),
        ("letters_in_numbers", ["state", "reason", "table_name", "first_failed_at", "size"]),
        ("letters_by_last_action", ["last_action_at"]),
    ):
        op.create_index(name, "letters", columns)
    op.create_index("letters_by_key", "letters", ["row_key"], postgresql_using="hash")
    for claim in ("claimed_by", "lost_by"):
        claimed = sa.text(f"{claim} IS NOT NULL")
        op.create_index(f"letters_{claim}", "letters", [claim], sqlite_where=claimed, postgresql_where=claimed)
    if op.get_context().dialect.name == "sqlite":
        order = ["table_name", "row_key", "sequence_order", "first_failed_at", "n"]
        op.create_index("letters_in_replay_order", "letters", order)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, ExactText, nullable=False)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _dead_letter_number(number: sa.types.TypeEngine[int], *, primary_key: bool) -> sa.Column[int]:
    owner = sa.ForeignKey("letters.n", ondelete="CASCADE")
    return sa.Column("n", number, owner, primary_key=primary_key, autoincrement=False, nullable=False)
