"""The tokens of a file are those that it holds now, and what is half written changes nothing."""

from pathlib import Path

import pytest

from services.dead_letter.web.callers import Callers
from services.dead_letter.web.refusals import RefusedError
from services.dead_letter.web.token_file import TokenFile
from shared.contracts.errors import MisconfiguredError

OLD, NEW = "the-first-token-of-ada", "another-token-of-hers"


def who(callers: Callers, token: str) -> str | None:
    """Return who a token stands for; None where it is not one."""
    try:
        return callers.who({"authorization": f"Bearer {token}"})
    except RefusedError:
        return None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"ada {OLD}\n")
    return file


def test_a_token_is_added_and_another_taken_back_while_the_service_runs(file: Path) -> None:
    callers = Callers(tokens=TokenFile(file))
    assert [who(callers, OLD), who(callers, NEW)] == ["ada", None]
    file.write_text(f"ada {OLD}\nada {NEW}\n")
    assert [who(callers, OLD), who(callers, NEW)] == ["ada", "ada"]
    file.write_text(f"ada {NEW}\n")
    assert [who(callers, OLD), who(callers, NEW)] == [None, "ada"]


def test_another_file_in_its_place_counts_as_secrets_are_exchanged_by_their_links(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "mounted"
    link.symlink_to(file)
    callers = Callers(tokens=TokenFile(link))
    assert who(callers, OLD) == "ada"
    other = tmp_path / "other"
    other.write_text(f"bob {OLD}\n")
    new = tmp_path / "new"
    new.symlink_to(other)
    new.replace(link)
    assert who(callers, OLD) == "bob"


@pytest.mark.parametrize("text", ["", "ada short\n", "ada too many words here\n", "\udcff"])
def test_what_is_half_written_locks_no_caller_out(file: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    callers = Callers(tokens=TokenFile(file))
    file.write_text(text, errors="surrogateescape")
    assert [who(callers, OLD), who(callers, OLD)] == ["ada", "ada"]
    file.write_text(f"ada {NEW}\n")
    assert [who(callers, OLD), who(callers, NEW)] == [None, "ada"]
    output = "".join(capfd.readouterr())
    assert output.count("tokens_not_read") == 1
    assert output.count("tokens_read") == 1
    assert OLD not in output
    assert NEW not in output


def test_a_file_that_is_gone_for_a_moment_locks_no_caller_out(file: Path) -> None:
    callers = Callers(tokens=TokenFile(file))
    text = file.read_text()
    file.unlink()
    assert who(callers, OLD) == "ada"
    file.write_text(text)
    assert who(callers, OLD) == "ada"


def test_a_service_does_not_start_with_a_file_without_tokens(file: Path) -> None:
    file.write_text("# nobody yet\n")
    with pytest.raises(MisconfiguredError, match="holds no token"):
        TokenFile(file)
