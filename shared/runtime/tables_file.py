"""The tables file, from the disk of the machine that a service starts on."""

from pathlib import Path

from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile, read_tables_file


def load_tables_file(path: Path | None) -> tuple[str, TablesFile]:
    """Return the text of a tables file, for processes that do not see this disk, and its content; no path is no file.

    MisconfiguredError where it cannot be read, or with every mistake in it.
    """
    if path is None:
        return "", TablesFile()
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise MisconfiguredError(
            "tables-file-not-utf8", f"TABLES_FILE={path} is not UTF-8 text ({error}): save it as UTF-8"
        ) from error
    except OSError as error:
        raise MisconfiguredError("tables-file-unreadable", f"TABLES_FILE={path} cannot be read: {error}") from error
    return text, read_tables_file(text, path.name)
