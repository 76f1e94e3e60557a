"""Commands that decide: `discard`, `restore`, `edit`. Each is written into the trail, with who and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from services.dead_letter.app.decisions import (
    RESTORABLE,
    Decision,
    NotDoneError,
    decide,
    keep_edit,
    letter_of,
)
from services.dead_letter.commands.filters import Filters, no_letters, with_filters
from services.dead_letter.commands.output import print_document, progress, say
from services.dead_letter.commands.reading import Json
from services.dead_letter.commands.tools import Tools
from services.dead_letter.core.editing import row_text, with_columns
from services.dead_letter.core.letters import State, StoredLetter
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import LetterStore

All = Annotated[bool, typer.Option("--all", help="Mean every letter: needed where nothing else says which.")]


def refuse_everything(filters: Filters, everything: bool) -> None:
    """Refuse to change every letter there is, unless that is said."""
    if not filters.narrowed and not everything:
        raise typer.BadParameter("say which letters (--id, --group, --table, ...), or --all", param_hint="filters")


def add_changing(app: typer.Typer, tools: Tools) -> None:
    """Add the commands that decide about letters."""

    @app.command()
    @with_filters(tools.clock.now)
    def discard(
        filters: Filters,
        why: Annotated[str, typer.Option("--why", help="For the trail.")],
        everything: All = False,
        json: Json = False,
    ) -> None:
        """Decide that letters are not to be applied: open ones. `restore` opens them again.

        --json: {"state": "discarded", "changed": how many, "matched": how many there were}.
        """
        refuse_everything(filters, everything)
        with tools.store() as store:
            _set(store, tools, filters.chosen(store, State.OPEN), State.DISCARDED, (State.OPEN,), why, json)

    @app.command()
    @with_filters(tools.clock.now)
    def restore(
        filters: Filters,
        why: Annotated[str, typer.Option("--why", help="For the trail.")] = "",
        everything: All = False,
        json: Json = False,
    ) -> None:
        """Open letters again: discarded and superseded ones, and by --id or --state also those that were replayed.

        --json: {"state": "open", "changed": how many, "matched": how many there were}.
        """
        refuse_everything(filters, everything)
        with tools.store() as store:
            _set(store, tools, filters.chosen(store, *RESTORABLE[:2]), State.OPEN, RESTORABLE, why, json)

    @app.command()
    def edit(
        letter: Annotated[str, typer.Argument(metavar="ID", help="Eight characters of it are enough.")],
        why: Annotated[str, typer.Option("--why", help="For the trail: what was wrong.")],
        columns: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="COLUMN=JSON", help="Give a column a value: seats=12, name='\"Ada\"'."),
        ] = None,
        file: Annotated[Path | None, typer.Option("--file", help="The whole row: a JSON object of columns.")] = None,
        json: Json = False,
    ) -> None:
        """Give the row of a letter other values: a copy that takes its place, to be replayed in its stead.

        Without --set or --file the row is opened in $EDITOR. Only columns outside the primary key can be edited, one
        change at a time; the copy has the next revision in its sequence, so it wins over its original and nothing else.

        --json: {"id": the copy's, "edit_of": the letter's, "sequence": "...", "diff": "..."}.
        """
        if columns and file is not None:
            raise typer.BadParameter("give --set or --file, not both", param_hint="--file")
        if not why.strip():
            raise typer.BadParameter("say what was wrong", param_hint="--why")
        values = _pairs(columns or [])
        with tools.store() as store:
            original = letter_of(store, letter)
            copy, change = keep_edit(
                store,
                original,
                lambda: _row(original, values, file, tools),
                why=why,
                who=tools.who,
                clock=tools.clock,
            )
        if json:
            shown = {"id": copy.id, "edit_of": original.id, "sequence": copy.letter.sequence, "diff": change.diff}
            print_document(shown)
        else:
            say(change.diff)
            say(f"letter {copy.id} takes its place; send it: replay --id {copy.id} --execute")


def _row(original: StoredLetter, values: Mapping[str, str], file: Path | None, tools: Tools) -> str:
    if values:
        return with_columns(original.letter, values)
    if file is None:
        return tools.editor(row_text(original.letter))
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--file") from None


def _pairs(texts: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (name, sign, _value), text in zip(pairs, texts, strict=True):
        if not sign or not name:
            raise typer.BadParameter(f"{text!r} is not COLUMN=JSON", param_hint="--set")
    return {name: value for name, _sign, value in pairs}


def _set(
    store: LetterStore,
    tools: Tools,
    selection: Selection,
    state: State,
    only_from: Sequence[State],
    why: str,
    json: bool,
) -> None:
    """Bring letters into a state, page by page, and print how many; NotDoneError unless it was all of them."""
    matched = store.count(selection)
    if not matched:
        raise no_letters(selection)
    decision = Decision(state=state, only_from=frozenset(only_from), who=tools.who, why=why)
    with progress(state.value, matched) as bar:
        done = decide(store, selection, decision, tools.clock, bar.add)
    changed, seen = done.changed, done.looked_at
    if json:
        print_document({"state": state.value, "changed": changed, "matched": seen})
    else:
        say(f"{changed} letters are {state.value} now")
    if changed < seen:
        from_what = " or ".join(one.value for one in only_from)
        raise NotDoneError(f"{seen - changed} letters are as they were: not {from_what}, or held by a replay just now")
