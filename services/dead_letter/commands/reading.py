"""Commands that change nothing: `list`, `show`, `groups`, `stats`, `export`. Who asks for values is in the trail."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from services.dead_letter.app.decisions import dead_letter_of
from services.dead_letter.app.export import exported
from services.dead_letter.commands.command_line import (
    ExportCommand,
    GroupsCommand,
    ListCommand,
    ShowCommand,
    StatsCommand,
)
from services.dead_letter.commands.filters import no_dead_letters
from services.dead_letter.commands.output import (
    SHORT,
    moment,
    print_document,
    print_line,
    print_table,
    printable,
    progress,
)
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.core.dead_letters import Action, DeadLetterLine, State
from services.dead_letter.core.documents import dead_letter_document, group_document, line_document, stats_document
from services.dead_letter.core.guidance import GUIDANCE, explained_in
from shared.contracts.errors import MisconfiguredError

_COLUMNS = ("ID", "STATE", "REASON", "TABLE", "KEY", "LAST FAILED", "ATTEMPTS", "REPLAYS", "DETAIL")


def list_dead_letters(command: ListCommand, tools: CommandTools) -> None:
    """List dead letters, those that failed last first; open ones unless --state or --id says otherwise."""
    with tools.store() as store:
        selection = command.chosen(store, tools.clock.now(), State.OPEN)
        try:
            page = store.find(selection, limit=command.limit, after=command.after)
        except ValueError as error:
            raise MisconfiguredError("after-malformed", f"--after {command.after}: {error}") from error
        matched = store.count(selection)
    if command.json:
        dead_letters = [line_document(line) for line in page.dead_letters]
        print_document({"dead_letters": dead_letters, "after": page.after, "matched": matched})
    if not matched:
        raise no_dead_letters(selection)
    if not command.json:
        print_table(_COLUMNS, map(_row, page.dead_letters))
        if page.after is not None:
            print_line(f"{len(page.dead_letters)} of {matched}; the next: --after {page.after}")


def show(command: ShowCommand, tools: CommandTools) -> None:
    """Show dead letters whole: why they failed, what they hold, and what was done about them."""
    with tools.store() as store:
        found = [dead_letter_of(store, one) for one in command.ids]
        if command.values:  # first written down, then shown
            store.note([one.id for one in found], Action.VALUES_SHOWN, tools.who, tools.clock.now())
        trails = [store.trail(one.id) for one in found]
    for stored, trail in zip(found, trails, strict=True):
        document = dead_letter_document(stored, trail, values=command.values)
        if command.json:
            print_document(document)
        else:
            print_line(printable(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()))
            print_line(f"\n{stored.reason.value}: {GUIDANCE[stored.reason]} {explained_in(stored.reason)} explains it.")


def list_groups(command: GroupsCommand, tools: CommandTools) -> None:
    """Show dead letters by their cause, the largest group first; open ones unless --state or --id says otherwise."""
    with tools.store() as store:
        selection = command.chosen(store, tools.clock.now(), State.OPEN)
        found = store.groups(selection, limit=command.limit)
    if command.json:
        print_document({"groups": [group_document(one) for one in found]})
    if not found:
        raise no_dead_letters(selection)
    if not command.json:
        documents = [group_document(one) for one in found]
        names = ("id", "dead_letters", "reason", "table")
        print_table(
            ("GROUP", "DEAD LETTERS", "REASON", "TABLE", "FIRST", "LAST", "DETAIL"),
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
        print_line("")
        for reason in dict.fromkeys(one.reason for one in found):
            print_line(f"{reason.value}: {GUIDANCE[reason]} {explained_in(reason)} explains it.")


def stats(command: StatsCommand, tools: CommandTools) -> None:
    """Show what there is, in numbers."""
    with tools.store() as store:
        found = store.stats()
    document = stats_document(found)
    if command.json:
        print_document(document)
        return
    print_table(("STATE", "DEAD LETTERS"), [(state.value, found.by_state.get(state, 0)) for state in State])
    if found.by_reason:
        print_line("")
        print_table(("OPEN, BY REASON", "DEAD LETTERS"), [(one.value, n) for one, n in found.by_reason.items()])
        print_line("")
        print_table(("OPEN, BY TABLE", "DEAD LETTERS"), [(one or "(unknown)", n) for one, n in found.by_table.items()])
        print_line(f"\nthe oldest open one failed first at {document['oldest_open']}")
    print_line(f"{found.payload_bytes} bytes of payload are kept")


def export(command: ExportCommand, tools: CommandTools) -> None:
    """Write dead letters as JSON lines in replay order; open ones unless --state or --id says otherwise."""
    with tools.store() as store:
        selection = command.chosen(store, tools.clock.now(), State.OPEN)
        total = store.count(selection)
        if not total:
            raise no_dead_letters(selection)
        with _destination(command.out) as file, progress("exported", total) as bar:
            for lines in exported(store, selection, values=command.values, who=tools.who, clock=tools.clock):
                file.write(lines.text)
                bar(advance=lines.dead_letters)


def _row(line: DeadLetterLine) -> list[object]:
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
        raise MisconfiguredError("export-not-written", f"--out: {out} cannot be written: {error}") from error
