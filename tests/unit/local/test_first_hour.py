"""What somebody meets who tries the local platform for the first time: a cause and a fix, on the last line."""

import io
from pathlib import Path

from rich.console import Console

from deploy.local.__main__ import show_rows
from deploy.local.platform import needs
from deploy.local.proof.progress import Progress
from deploy.local.proof.reconciling import Reconciled
from deploy.local.proof.sides import Figures
from tests.unit.local.reports import a_report

ROOT = Path(__file__).resolve().parents[3]


def a_console(width: int = 80) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False), text


def test_everything_that_is_missing_is_named_at_once_with_the_way_to_get_it(tmp_path: Path) -> None:
    found = "\n".join(needs.missing({"PATH": str(tmp_path)}, python=(3, 9)))

    for words in (
        "Python 3.11 or newer is needed, and this is 3.9: make install PYTHON=",
        "Java 17 or newer is needed (Pub/Sub emulator, Spark): apt-get install",
        "the Cloud SDK was not found: set CLOUDSDK_ROOT",
        "gcloud components install cloud-spanner-emulator pubsub-emulator bigtable",
    ):
        assert words in found


def test_a_java_that_cannot_be_run_is_missing(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("no program")
    java.chmod(0o600)

    found, wrong = needs.java({"JAVA_HOME": str(tmp_path)})
    assert found is None
    assert "Java 17 or newer is needed" in wrong
    assert f"{java} cannot be run" in wrong


def test_a_run_that_fails_reports_so_on_its_last_line_with_the_cause() -> None:
    console, text = a_console()
    a_report(reconciled=[Reconciled("flights", differing=["ended with exit code 2: no such\nfile"])]).print(console)
    assert text.getvalue().splitlines()[-1] == "FAILED: reconcile, flights: ended with exit code 2: no such file"

    console, text = a_console()
    a_report(reconciled=[Reconciled("flights", ["airlines"], 16)]).print(console)
    assert text.getvalue().splitlines()[-1].startswith("BigQuery equals")


def test_no_name_of_a_column_is_broken_on_a_narrow_terminal() -> None:
    names = ["carrier", "name", "_millrace_sequence", "_millrace_commit_timestamp", "another_long_name_of_a_column"]
    for columns in (names, names[:2]):
        console, text = a_console(80)
        show_rows([dict.fromkeys(columns, "v")], console)
        assert all(name in text.getvalue() for name in columns)
        assert text.getvalue().endswith("1 row\n")


class OneSide:
    """A side of a run as far as its progress is shown."""

    def figures(self) -> list[Figures]:
        return [Figures("flights", committed=0, published=3, behind=None, before=1, snapshot=3)]


def test_a_snapshot_has_never_more_rows_than_there_were() -> None:
    console, _text = a_console()
    progress = Progress(console, [OneSide()], lambda: 0)  # type: ignore[list-item]
    assert "snapshot 1 of 1" in progress._line()


def test_numbers_that_stand_still_are_shown_with_what_is_waited_for() -> None:
    console, _text = a_console()
    progress = Progress(console, [], lambda: 5_734)
    assert progress._summary().endswith("5,734 to be applied")
    progress.waits_for = "all services to be ready; Spark takes longest"
    assert progress._summary().endswith(
        "5,734 to be applied, waiting for all services to be ready; Spark takes longest"
    )
