"""A person's editor, for a text."""

import shlex
import subprocess
import tempfile
from pathlib import Path


def edit_text(editor: str | None, text: str) -> str:
    """Let a person edit a text in an editor, a command line, and return what was saved.

    ValueError where there is no editor, or it does not end well: then nothing is edited.
    """
    if not editor:
        raise ValueError("no editor is known: set EDITOR, or give --set COLUMN=JSON or --file")
    with tempfile.TemporaryDirectory(prefix="dead-letter-") as directory:  # no other user may read it
        file = Path(directory) / "row.json"
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)
            return file.read_text(encoding="utf-8")
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            raise ValueError(f"the editor {editor} (VISUAL or EDITOR) failed: {error}") from error
