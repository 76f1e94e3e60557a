"""The dead letter whose replay one came from. It is not known of those that are stored already."""

import sqlalchemy as sa
from alembic import op

from services.dead_letter.adapters.store.schema import ExactText

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, and an index of the lines of the trail that are not repeated without end."""
    op.add_column("letters", sa.Column("replay_of", ExactText))
    known = sa.text("replay_of IS NOT NULL")
    op.create_index("letters_replay_of", "letters", ["replay_of"], sqlite_where=known, postgresql_where=known)
    decided = sa.text("action NOT IN ('failed_again', 'values_shown', 'exported')")
    op.create_index(
        "letter_trail_decisions", "letter_trail", ["n", "k"], sqlite_where=decided, postgresql_where=decided
    )
