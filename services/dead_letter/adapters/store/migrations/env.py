"""What alembic runs its migrations with: the connection, and with it the transaction, of the caller."""

from alembic import context

from services.dead_letter.adapters.store.migrations.versioning import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # in SQLite too: its transaction is begun by hand
)
context.run_migrations()
