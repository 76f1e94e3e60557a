"""The tables file on a disk: there, missing, unreadable, wrong."""

from datetime import timedelta
from pathlib import Path

import pytest

from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile, read_tables_file
from shared.runtime.doctor import inspect_keep
from shared.runtime.findings import Level
from shared.runtime.tables_file import load_tables_file


def test_its_text_and_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "tables.toml"
    path.write_text('exclude = ["tmp_*"]', encoding="utf-8")

    assert load_tables_file(path) == ('exclude = ["tmp_*"]', TablesFile(exclude=("tmp_*",)))
    path.write_text('exclude = ["tmp_*"]', encoding="utf-8-sig")
    assert load_tables_file(path) == ('exclude = ["tmp_*"]', TablesFile(exclude=("tmp_*",))), "a byte order mark"
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


def test_doctor_names_each_history_that_keeps_less_than_the_stream_retains() -> None:
    file = read_tables_file('exclude = ["X"]\n[defaults]\nkeep = "6d"\n[tables.T]\nkeep = "7d"\n')

    (found,) = inspect_keep(file, ["T", "U", "V", "X"], timedelta(days=7))

    assert (found.level, found.check) == (Level.ERROR, "tables file: keep")
    assert [one.partition(" is ")[0] for one in found.detail.split("; ")] == [
        f'line 3 of the tables file: keep = "6d" of table {name}' for name in "UV"
    ]
    assert "[history-kept-too-short]" in found.detail
    assert not list(inspect_keep(file, ["T", "X"], timedelta(days=7)))
    assert not list(inspect_keep(file, ["T", "U"], timedelta(days=6)))
