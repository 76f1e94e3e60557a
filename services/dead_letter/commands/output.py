"""What commands print: documents for programs, tables for people, and how far long work has come."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from services.dead_letter.core.documents import Document

SHORT: Final = 12
"""Characters of an id that tables show; eight are enough to name a dead letter."""
_PIPED_WIDTH: Final = 240  # columns of a table that is not shown in a terminal


def console(*, stderr: bool = False) -> Console:
    """Return a console that takes every text as it is: what comes from elsewhere is no markup."""
    file = sys.stderr if stderr else sys.stdout
    width = None if file.isatty() else _PIPED_WIDTH
    return Console(file=file, markup=False, highlight=False, emoji=False, width=width, soft_wrap=False)


def print_line(text: str) -> None:
    """Print a line for people."""
    typer.echo(printable(text))


def complain(text: str) -> None:
    """Print what went wrong, and what can be done."""
    typer.echo(printable(text), err=True)


def print_document(document: Document) -> None:
    """Print a document on one line: JSON, as `documents` has it."""
    sys.stdout.write(msgspec.json.encode(document).decode(errors="replace") + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; every cell on one line, and none of them able to steer a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="ellipsis" if column in ("WHY", "DETAIL", "KEY") else "fold")
    for row in rows:
        table.add_row(*(printable("" if cell is None else str(cell)) for cell in row))
    console().print(table)


def printable(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)


def moment(text: str | None) -> str:
    """Return a timestamp to the second, which is enough to read."""
    return "" if text is None else text.partition(".")[0].rstrip("Z").replace("T", " ")


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show on a terminal, beside what is printed, how far long work has come.

    Call what it yields with ``advance`` or ``completed``, a number, and a ``note``.
    """
    terminal = console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        yield partial(bar.update, bar.add_task(what, total=total, note=""))
