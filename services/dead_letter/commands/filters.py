"""Which dead letters a command is about: the options that several commands share, and what they mean."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, TypeVar

import typer

from services.dead_letter.app.decisions import NothingFoundError, with_usual_states
from services.dead_letter.core.dead_letters import DeadLetterId, GroupId, State
from services.dead_letter.core.selection import Selection, moment, sequence_bound
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

T = TypeVar("T")


class Which(Enum):
    """States to ask for."""

    OPEN = "open"
    REPLAYED = "replayed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"
    ANY = "any"


def _several(name: str, metavar: str, description: str) -> Any:
    return typer.Option(name, metavar=metavar, help=description, default_factory=list, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectingCommand:
    """What says which dead letters are meant: everything given has to hold; of several values of one option, any."""

    ids: Annotated[list[str], _several("--id", "ID", "Its id, or the first eight characters or more of it.")]
    groups: Annotated[list[str], _several("--group", "ID", "The group that it is in (see `groups`).")]
    tables: Annotated[list[str], _several("--table", "TABLE", "The source table.")]
    reasons: Annotated[list[Reason], _several("--reason", "REASON", "Why it failed, such as value_does_not_fit.")]
    keys: Annotated[list[str], _several("--key", "KEY", "The key of its row, as `list` shows it: '[\"a\",1]'.")]
    states: Annotated[list[Which], _several("--state", "STATE", "open, replayed, superseded, discarded or any.")]
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Failed last at or after: 2h (ago), or an RFC 3339 time.")
    ] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Failed last before.")] = None
    sequence_from: Annotated[str | None, typer.Option(metavar="SEQ", help="Of this sequence or a newer one.")] = None
    sequence_until: Annotated[str | None, typer.Option(metavar="SEQ", help="Of a sequence older than this one.")] = None

    def selection(self, now: Nanoseconds) -> Selection:
        """Return what the options mean; MisconfiguredError naming the option that means nothing."""
        states = () if Which.ANY in self.states else self.states
        return Selection(
            ids=frozenset(DeadLetterId(one.lower()) for one in self.ids),
            groups=frozenset(map(GroupId, self.groups)),
            tables=frozenset(self.tables),
            reasons=frozenset(self.reasons),
            keys=frozenset(self.keys),
            states=frozenset(State(one.value) for one in states),
            failed_from=_read("--since", self.since, lambda text: moment(text, now)),
            failed_until=_read("--until", self.until, lambda text: moment(text, now)),
            sequence_from=_read("--sequence-from", self.sequence_from, sequence_bound),
            sequence_until=_read("--sequence-until", self.sequence_until, sequence_bound),
        )

    def chosen(self, store: DeadLetterStore, now: Nanoseconds, *usual: State) -> Selection:
        """Return the selection, with the usual states where neither states nor ids are given, and its ids in full.

        NothingFoundError naming an id that is none, or the beginning of several.
        """
        return with_usual_states(store, self.selection(now), *(() if self.states else usual))

    def refuse_everything(self, now: Nanoseconds, *, everything: bool) -> None:
        """Refuse to change every dead letter there is, unless that is asked for."""
        if not everything and replace(self.selection(now), states=frozenset()).everything:
            raise MisconfiguredError(
                "no-dead-letter-named", "name the dead letters to change (--id, --group, --table, ...), or give --all"
            )


def no_dead_letters(selection: Selection) -> NothingFoundError:
    """Return the error where a selection holds none; of keys, how they are written."""
    shown = """; keys are written as lists show them, exactly: --key '["a",1]'""" if selection.keys else ""
    return NothingFoundError(f"no dead letters match. That is not a failure: exit code 3 tells it to a script{shown}")


def _read(option: str, text: str | None, read: Callable[[str], T]) -> T | None:
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise MisconfiguredError("filter-time-invalid", f"{option} {text}: {error}") from error
