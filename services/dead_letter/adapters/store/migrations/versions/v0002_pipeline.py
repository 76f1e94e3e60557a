"""Of which pipeline the dead letters are. Older stores do not have it: the first collector or replay records it."""

import sqlalchemy as sa
from alembic import op

from services.dead_letter.adapters.store.schema import ExactText

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "letters_pipeline",
        sa.Column("part", ExactText, primary_key=True, nullable=False),
        sa.Column("name", ExactText, nullable=False),
    )
