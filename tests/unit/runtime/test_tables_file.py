"""The tables file on a disk: there, missing, unreadable, wrong."""

from pathlib import Path

import pytest

from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.runtime.tables_file import load_tables_file


def test_its_text_and_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "tables.toml"
    path.write_text('exclude = ["tmp_*"]', encoding="utf-8")

    assert load_tables_file(path) == ('exclude = ["tmp_*"]', TablesFile(exclude=("tmp_*",)))
    assert load_tables_file(None) == ("", TablesFile())


def test_one_that_cannot_be_read_or_is_wrong_is_named(tmp_path: Path) -> None:
    latin, wrong = tmp_path / "latin.toml", tmp_path / "wrong.toml"
    latin.write_bytes(b'exclude = ["\xe9"]')
    wrong.write_text("\n\nexclud = []", encoding="utf-8")

    with pytest.raises(MisconfiguredError, match=rf"TABLES_FILE={latin} is not UTF-8 text .*: save it as UTF-8"):
        load_tables_file(latin)
    for path, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(MisconfiguredError, match=f"TABLES_FILE={path} cannot be read: .*{why}"):
            load_tables_file(path)
    with pytest.raises(MisconfiguredError, match=r"wrong\.toml:3: unknown key 'exclud'"):
        load_tables_file(wrong)
