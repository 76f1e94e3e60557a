"""Which letters a command is about: the options that all of them share, and what they mean."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Final

import typer

from services.dead_letter.app.decisions import NothingFoundError, with_usual_states
from services.dead_letter.core.letters import GroupId, LetterId, State
from services.dead_letter.core.selection import Selection, moment, sequence_bound
from services.dead_letter.ports import LetterStore
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

_PANEL: Final = "Which letters (everything given has to hold; of several values of one option, any)"


class Which(Enum):
    """States to ask for."""

    OPEN = "open"
    REPLAYED = "replayed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Filters:
    """What was given on the command line. ``selection`` has no states where none were given."""

    selection: Selection
    states_given: bool

    @property
    def narrowed(self) -> bool:
        """Tell whether anything but states narrows it down."""
        return not replace(self.selection, states=frozenset()).everything

    def chosen(self, store: LetterStore, *usual: State) -> Selection:
        """Return the selection, with the usual states where neither states nor ids are given, and its ids in full.

        NothingFoundError naming an id that is none, or the beginning of several.
        """
        return with_usual_states(store, self.selection, *(() if self.states_given else usual))


def _option(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **more)


_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "ids": (list[str], _option("--id", metavar="ID", help="Its id, or the first eight characters or more of it.")),
    "groups": (list[str], _option("--group", metavar="ID", help="The group that it is in (see `groups`).")),
    "tables": (list[str], _option("--table", metavar="TABLE", help="The source table.")),
    "reasons": (list[Reason], _option("--reason", metavar="REASON", help="Why it failed, such as value_does_not_fit.")),
    "keys": (list[str], _option("--key", metavar="KEY", help="The key of its row, as `list` shows it: '[\"a\",1]'.")),
    "states": (list[Which], _option("--state", metavar="STATE", help="open, replayed, superseded, discarded or any.")),
    "since": (str, _option("--since", metavar="TIME", help="Failed last at or after: 2h (ago), or an RFC 3339 time.")),
    "until": (str, _option("--until", metavar="TIME", help="Failed last before.")),
    "sequence_from": (str, _option("--sequence-from", metavar="SEQ", help="Of this sequence or a newer one.")),
    "sequence_until": (str, _option("--sequence-until", metavar="SEQ", help="Of a sequence older than this one.")),
}


def with_filters(now: Callable[[], Nanoseconds]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command whose first parameter is ``filters`` the options that say which letters it is about."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def with_options(**given: Any) -> None:
            raw = {name: given.pop(name) for name in _OPTIONS}
            command(filters(raw, now()), **given)

        own = [one for one in inspect.signature(command).parameters.values() if one.name != "filters"]
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=[] if kind is not str else None,
                annotation=Annotated[kind if kind is not str else str | None, option],
            )
            for name, (kind, option) in _OPTIONS.items()
        ]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + shared
        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_options

    return decorate


def filters(raw: dict[str, Any], now: Nanoseconds) -> Filters:
    """Return what the options mean; typer.BadParameter naming the option that means nothing."""
    states = {one for one in raw["states"] if one is not Which.ANY}
    if Which.ANY in raw["states"]:
        states = set()
    selection = Selection(
        ids=frozenset(LetterId(one.lower()) for one in raw["ids"]),
        groups=frozenset(map(GroupId, raw["groups"])),
        tables=frozenset(raw["tables"]),
        reasons=frozenset(raw["reasons"]),
        keys=frozenset(raw["keys"]),
        states=frozenset(State(one.value) for one in states),
        failed_from=_read("--since", raw["since"], lambda text: moment(text, now)),
        failed_until=_read("--until", raw["until"], lambda text: moment(text, now)),
        sequence_from=_read("--sequence-from", raw["sequence_from"], sequence_bound),
        sequence_until=_read("--sequence-until", raw["sequence_until"], sequence_bound),
    )
    return Filters(selection, bool(raw["states"]))


def no_letters(selection: Selection) -> NothingFoundError:
    """Return what to say where a selection holds none; of keys, how they are written."""
    shown = """; keys are written as lists show them, exactly: --key '["a",1]'""" if selection.keys else ""
    return NothingFoundError(f"no letters{shown}")


def _read(option: str, text: str | None, read: Callable[[str], Any]) -> Any:
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
