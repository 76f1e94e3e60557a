"""The version of a dead letter store: found, compared with what this program knows, and brought up to it."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from shared.contracts.errors import MisconfiguredError

VERSION_TABLE: Final = "letters_version"
_FOLDER: Final = Path(__file__).parent


def migrate(connection: Connection) -> None:
    """Make the tables, or bring those of an older version up to date, in the transaction that is open.

    MisconfiguredError where they are of a newer version, or another program's.
    """
    if not is_current(connection):
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def is_current(connection: Connection) -> bool:
    """Return whether the tables are there and of this version; MisconfiguredError where they never will be."""
    script = ScriptDirectory.from_config(_config())
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if found is None and inspect(connection).has_table("letters"):
        raise MisconfiguredError(
            "database-of-another-program",
            "the database has a table `letters` that no dead_letter service made: give the service a database, or in "
            "PostgreSQL a schema, of its own (DATABASE)",
        )
    if found is not None and found not in {revision.revision for revision in script.walk_revisions()}:
        raise MisconfiguredError(
            "database-newer",
            f"the database is of version {found}, which a newer dead_letter service made: run that version of it, or "
            "give this one a database of its own (DATABASE)",
        )
    return found == script.get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
