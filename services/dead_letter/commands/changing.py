"""Commands that decide: `discard`, `restore`, `edit`, `pipeline`. The trail has who decided what, and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from services.dead_letter.app.decisions import ONLY_FROM, USUAL, NotDoneError, dead_letter_of, decide, keep_edit
from services.dead_letter.commands.command_line import DiscardCommand, EditCommand, PipelineCommand, RestoreCommand
from services.dead_letter.commands.filters import no_dead_letters
from services.dead_letter.commands.output import print_document, print_line, progress
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.core.dead_letters import State, StoredDeadLetter
from services.dead_letter.core.editing import row_text, with_columns
from shared.contracts.errors import MisconfiguredError


def discard(command: DiscardCommand, tools: CommandTools) -> None:
    """Decide that open dead letters are not to be applied."""
    if not command.why.strip():
        raise MisconfiguredError("discard-without-reason", "--why: say why they are not to be applied")
    _set(command, tools, State.DISCARDED)


def restore(command: RestoreCommand, tools: CommandTools) -> None:
    """Open dead letters again."""
    _set(command, tools, State.OPEN)


def edit(command: EditCommand, tools: CommandTools) -> None:
    """Give the row of a dead letter other values, in a copy that takes its place."""
    if command.columns and command.file is not None:
        raise MisconfiguredError("edit-options-conflict", "give --set or --file, not both")
    if not command.why.strip():
        raise MisconfiguredError("edit-without-reason", "--why: say what was wrong")
    values = _pairs(command.columns or [])
    with tools.store() as store:
        original = dead_letter_of(store, command.dead_letter)
        copy, change = keep_edit(
            store,
            original,
            lambda: _row(original, values, command.file, tools),
            why=command.why,
            who=tools.who,
            clock=tools.clock,
        )
    if command.json:
        shown = {"id": copy.id, "edit_of": original.id, "sequence": copy.sequence, "diff": change.diff}
        print_document(shown)
    else:
        print_line(change.diff)
        print_line(f"dead letter {copy.id} takes its place; send it: replay --id {copy.id} --execute")


def show_pipeline(command: PipelineCommand, tools: CommandTools) -> None:
    """Show of which pipeline the dead letters are, or change it."""
    with tools.store() as store:
        new = tools.pipeline(command.subscription, command.topic)
        known = (
            store.change_pipeline(new, tools.clock.now()) if command.subscription or command.topic else store.pipeline()
        )
    if command.json:
        print_document({"subscription": known.subscription, "topic": known.topic})
        return
    print_line(f"collected from {known.subscription or 'whatever comes first'}")
    print_line(f"replayed to {known.topic or 'whatever comes first'}")


def _row(original: StoredDeadLetter, values: Mapping[str, str], file: Path | None, tools: CommandTools) -> str:
    if values:
        return with_columns(original.dead_letter, values)
    if file is None:
        return tools.editor(row_text(original.dead_letter))
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MisconfiguredError("edit-file-unreadable", f"--file: {file} cannot be read: {error}") from error


def _pairs(texts: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (name, sign, _value), text in zip(pairs, texts, strict=True):
        if not sign or not name:
            raise MisconfiguredError("edit-value-malformed", f"--set: {text!r} is not COLUMN=JSON")
    values = {name: value for name, _sign, value in pairs}
    if len(values) < len(pairs):
        raise MisconfiguredError("edit-column-repeated", "--set names a column twice: give each column one value")
    return values


def _set(command: DiscardCommand | RestoreCommand, tools: CommandTools, state: State) -> None:
    """Bring dead letters into a state, page by page, and print how many; NotDoneError unless it was all of them."""
    now = tools.clock.now()
    command.refuse_everything(now, everything=command.everything)
    with tools.store() as store:
        selection = command.chosen(store, now, *USUAL[state])
        matched = store.count(selection)
        if not matched:
            raise no_dead_letters(selection)
        with progress(state.value, matched) as bar:
            done = decide(
                store, selection, state, tools.clock, why=command.why, who=tools.who, report=lambda n: bar(advance=n)
            )
    changed, seen = done.changed, done.checked
    if command.json:
        print_document({"state": state.value, "changed": changed, "matched": seen})
    else:
        print_line(f"{changed} dead letter{' is' if changed == 1 else 's are'} {state.value} now")
    if changed < seen:
        from_what = " or ".join(one.value for one in ONLY_FROM[state])
        raise NotDoneError(
            f"{seen - changed} dead letters were not changed: they are not {from_what}, or claimed by a replay just now"
        )
