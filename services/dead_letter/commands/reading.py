"""Commands that look: `list`, `show`, `groups`, `stats`, `export`. Who asks for values is written into the trail."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from services.dead_letter.app.decisions import letter_of
from services.dead_letter.app.export import exported
from services.dead_letter.commands.filters import Filters, no_letters, with_filters
from services.dead_letter.commands.output import SHORT, moment, print_document, print_table, printable, progress, say
from services.dead_letter.commands.tools import Tools
from services.dead_letter.core.documents import (
    group_document,
    letter_document,
    line_document,
    stats_document,
)
from services.dead_letter.core.letters import Action, LetterLine, State

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Values = Annotated[bool, typer.Option("--values", help="Show the values of rows. It is written into the trail.")]


def add_reading(app: typer.Typer, tools: Tools) -> None:
    """Add the commands that change nothing."""

    @app.command("list")
    @with_filters(tools.clock.now)
    def list_letters(
        filters: Filters,
        limit: Annotated[int, typer.Option("--limit", min=1, help="Letters to show.")] = 50,
        after: Annotated[str | None, typer.Option("--after", help="Go on behind a page: its `after`.")] = None,
        json: Json = False,
    ) -> None:
        """List letters, those that failed last first; open ones unless --state or --id says otherwise.

        --json: {"letters": [...], "after": "..." or null, "matched": how many there are on all pages}.
        """
        with tools.store() as store:
            selection = filters.chosen(store, State.OPEN)
            try:
                page = store.find(selection, limit=limit, after=after)
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--after") from None
            matched = store.count(selection)
        if json:
            letters = [line_document(line) for line in page.letters]
            print_document({"letters": letters, "after": page.after, "matched": matched})
        if not matched:
            raise no_letters(selection)
        if not json:
            print_table(_COLUMNS, map(_row, page.letters))
            if page.after is not None:
                say(f"{len(page.letters)} of {matched}; the next: --after {page.after}")

    @app.command()
    def show(
        ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Eight characters of an id are enough.")],
        values: Values = False,
        json: Json = False,
    ) -> None:
        """Show letters whole: why they failed, what they hold, and what was done about them.

        --json prints one document a line: a letter as `list` has it, with attributes, payload and trail.
        """
        with tools.store() as store:
            found = [letter_of(store, one) for one in ids]
            if values:  # first written down, then shown
                store.note([one.id for one in found], Action.VALUES_SHOWN, tools.who, tools.clock.now())
            trails = [store.trail(one.id) for one in found]
        for stored, trail in zip(found, trails, strict=True):
            document = letter_document(stored, trail, values=values)
            if json:
                print_document(document)
            else:
                say(printable(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()))

    @app.command()
    @with_filters(tools.clock.now)
    def groups(
        filters: Filters,
        limit: Annotated[int, typer.Option("--limit", min=1, help="Groups to show.")] = 50,
        json: Json = False,
    ) -> None:
        """Show letters by their cause, the largest group first; open ones unless --state or --id says otherwise.

        --json: {"groups": [...]}.
        """
        with tools.store() as store:
            selection = filters.chosen(store, State.OPEN)
            found = store.groups(selection, limit=limit)
        if json:
            print_document({"groups": [group_document(one) for one in found]})
        if not found:
            raise no_letters(selection)
        if not json:
            documents = [group_document(one) for one in found]
            names = ("id", "letters", "reason", "table")
            print_table(
                ("GROUP", "LETTERS", "REASON", "TABLE", "FIRST", "LAST", "DETAIL"),
                (
                    [
                        *(each[name] for name in names),
                        moment(str(each["first_failed_at"])),
                        moment(str(each["last_failed_at"])),
                        each["detail"],
                    ]
                    for each in documents
                ),
            )

    @app.command()
    def stats(json: Json = False) -> None:
        """Show what there is, in numbers."""
        with tools.store() as store:
            found = store.stats()
        document = stats_document(found)
        if json:
            print_document(document)
            return
        print_table(("STATE", "LETTERS"), [(state.value, found.by_state.get(state, 0)) for state in State])
        if found.by_reason:
            say("")
            print_table(("OPEN, BY REASON", "LETTERS"), [(one.value, n) for one, n in found.by_reason.items()])
            say("")
            print_table(("OPEN, BY TABLE", "LETTERS"), [(one or "(unknown)", n) for one, n in found.by_table.items()])
            say(f"\nthe oldest open one failed first at {document['oldest_open']}")
        say(f"{found.payload_bytes} bytes of payload are kept")

    @app.command()
    @with_filters(tools.clock.now)
    def export(
        filters: Filters,
        out: Annotated[Path | None, typer.Option("--out", help="Write to this file; else it is printed.")] = None,
        values: Values = False,
    ) -> None:
        """Write letters as JSON lines in replay order; open ones unless --state or --id says otherwise.

        A line is a letter as `list --json` has it, with its attributes, and its payload with values masked; with
        --values its very bytes instead, as base64 in `data`.
        """
        with tools.store() as store:
            selection = filters.chosen(store, State.OPEN)
            total = store.count(selection)
            if not total:
                raise no_letters(selection)
            with _destination(out) as file, progress("exported", total) as bar:
                for lines in exported(store, selection, values=values, who=tools.who, clock=tools.clock):
                    file.write(lines.text)
                    bar.add(lines.letters)


_COLUMNS = ("ID", "STATE", "REASON", "TABLE", "KEY", "LAST FAILED", "ATTEMPTS", "REPLAYS", "DETAIL")


def _row(line: LetterLine) -> list[object]:
    shown = line_document(line)
    times = moment(str(shown["last_failed_at"]))
    plain = [shown[name] for name in ("state", "reason", "table", "key")]
    return [line.id[:SHORT], *plain, times, line.attempts, line.replays, shown["detail"]]


@contextmanager
def _destination(out: Path | None) -> Iterator[BinaryIO]:
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with out.open("wb") as file:
            yield file
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be written: {error}", param_hint="--out") from None
