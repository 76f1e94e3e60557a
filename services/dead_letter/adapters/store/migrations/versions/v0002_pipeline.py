"""Of which pipeline the letters are. What is there was made before that was asked: the first that comes says it."""

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
