"""The file of the mask key: what is wrong with it is said with its line in the tables file."""

from pathlib import Path

import pytest

from services.cdc_consumer.adapters.mask_key import read_mask_key
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile, read_tables_file

SECRET = b"0123456789abcdef0123456789abcdef"


def file_of(path: Path) -> TablesFile:
    return read_tables_file(f'# masks\nmask_key_file = "{path}"\n[defaults.masked_columns]\nEmail = "sha256"\n')


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_key_is_the_bytes_of_its_file_without_the_line_break_at_its_end(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "key").write_bytes(SECRET + end)
    key = read_mask_key(file_of(tmp_path / "key"))

    assert key is not None
    assert (key.secret, SECRET.decode() in repr(key)) == (SECRET, False)
    assert read_mask_key(file_of(tmp_path / "key"), expected=key.fingerprint) == key


@pytest.mark.parametrize(
    ("content", "expected", "why"),
    [
        (None, "", "cannot be read .No such file"),
        (b"short\n", "", "has 5 bytes, and a key needs 32"),
        (SECRET, "0" * 16, "another key on this machine"),
    ],
)
def test_a_key_that_is_missing_short_or_another_one_is_refused(
    tmp_path: Path, content: bytes | None, expected: str, why: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(MisconfiguredError, match=f"^line 2 of the tables file: mask_key_file = .* {why}"):
        read_mask_key(file_of(tmp_path / "key"), expected=expected)


def test_no_file_is_read_where_nothing_is_masked_by_a_digest() -> None:
    assert read_mask_key(read_tables_file('mask_key_file = "/no/key"\n')) is None
    assert read_mask_key(TablesFile()) is None
