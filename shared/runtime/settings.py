"""Settings: one frozen dataclass per service, read once from the environment, every mistake in one error."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from shared.contracts.durations import format_duration, parse_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

T = TypeVar("T")

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogFormat = Literal["auto", "json", "text"]

HIDDEN: Final = "***"
"""What is shown of a secret."""

_TOGETHER: Final = "_checks_settings_together"
_SHORTEST: Final = 5
"""Letters of a name: a shorter one is one letter away from too many others."""
_LONG: Final = 10
"""Letters of a name in which two mistakes are found: a shorter one is two letters away from too many others."""

Check = Callable[[Any], str | None]
CheckT = TypeVar("CheckT", bound=Check)


def setting(
    description: str,
    *,
    default: Any = dataclasses.MISSING,
    env: str | None = None,
    unit: str = "",
    least: Any = None,
    most: Any = None,
    check: Callable[[Any], object] | None = None,
    shown: Callable[[Any], object] | None = None,
) -> Any:
    """Declare a field of a Settings class: what it means, its variable's name if not its own, what a number counts.

    ``check`` raises ValueError for values that no bounds describe. ``shown`` returns what of a value may be seen in
    logs and messages, where that is not all of it; `hidden` for a secret.
    """
    metadata = {
        "description": description,
        "env": env,
        "unit": unit,
        "least": least,
        "most": most,
        "check": check,
        "shown": shown,
    }
    return dataclasses.field(default=default, metadata=metadata)


def hidden(_value: object) -> object:
    """Return what is shown of a secret."""
    return HIDDEN


def file_there(path: Path) -> None:
    """Refuse a file that cannot be read; for ``check``."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or type(error).__name__}") from None


def together(check: CheckT) -> CheckT:
    """Mark a method of a Settings class that says what is wrong with several fields together, or None.

    It is asked of fields that are right one by one, and not at all where one that it reads is not.
    """
    setattr(check, _TOGETHER, True)
    return check


def check_together(settings: object) -> None:
    """Raise ValueError, its arguments one mistake each, where fields contradict each other; for ``__post_init__``."""
    if mistakes := _mistakes_together(type(settings), settings):
        raise ValueError(*mistakes)


def settings_shown(settings: object) -> Mapping[str, object]:
    """Return settings as they may be logged, written as they are set: secrets are hidden."""
    hints = typing.get_type_hints(type(settings))
    return {
        field.name: value_shown(hints[field.name], _as_shown(field, getattr(settings, field.name)))
        for field in dataclasses.fields(settings)  # type: ignore[arg-type]
    }


def value_shown(hint: Any, value: object) -> object:
    """Return a setting's value as it is written in the environment; numbers, truth values and None as they are."""
    match value:
        case timedelta():
            return format_duration(value)
        case int() if essential(hint) is Nanoseconds:
            return format_timestamp(Nanoseconds(value))
        case int() | float() | None:
            return value
        case _:
            return str(value)


def essential(hint: Any) -> Any:
    """Return what a type hint says of values that are there: ``X`` of ``X | None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def read_settings(settings: type[T], environ: Mapping[str, str]) -> T:
    """Return the settings that the environment gives; MisconfiguredError naming every missing or malformed variable.

    A variable set to nothing counts as not set. Durations are written ``500ms``, ``10s``, ``5m``, ``2h`` or ``7d``.
    What shows only when fields are seen together (`together`) is in the same error, as far as those are right.
    """
    hints = typing.get_type_hints(settings)
    values: dict[str, Any] = {}
    right: dict[str, Any] = {}  # those, and defaults
    mistakes: list[str] = []
    misspelt = {known: near for near, known in misspelt_variables(settings, environ).items()}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        variable = variable_name(field)
        text = environ.get(variable, "").strip()
        if not text:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                description = field.metadata.get("description", "required")
                near = misspelt.get(variable)
                meant = f"; {near} is set: is {variable} meant?" if near else ""
                mistakes.append(f"{variable} is not set ({description}){meant}")
            else:
                right[field.name] = field.default
            continue
        try:
            values[field.name] = right[field.name] = _parsed(hints[field.name], text, field.metadata)
        except ValueError as error:
            mistakes.append(f"{variable}={_as_shown(field, text)!r}: {error}")
    mistakes += _mistakes_together(settings, cast("T", types.SimpleNamespace(**right)))
    if not mistakes:
        try:
            return settings(**values)
        except ValueError as error:  # a `__post_init__` of its own
            mistakes += map(str, error.args)
    raise MisconfiguredError("invalid-configuration", "invalid configuration:\n  " + "\n  ".join(mistakes))


_OF_OTHER_PROGRAMS: Final = frozenset({"LOGLEVEL"})
"""Variables that other programs read and whose names are nearly those of settings."""


def misspelt_variables(settings: type, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables whose names are nearly those of settings that are not set, each with the setting's.

    A name that is only similar belongs to another program; so does one whose setting is set as well.
    """
    names = {variable_name(field) for field in dataclasses.fields(settings)}
    unset = [name for name in sorted(names) if not environ.get(name, "").strip() and len(name) >= _SHORTEST]
    found: dict[str, str] = {}
    for name in sorted(environ.keys() - names - _OF_OTHER_PROGRAMS):
        near = (
            known
            for edits in (1, 2)
            for known in unset
            if (edits == 1 or len(known) >= _LONG) and _within(edits, name.upper(), known)
        )
        if meant := next(near, None):
            found[name] = meant
    return found


def _within(edits: int, name: str, known: str) -> bool:
    """Return whether two names differ by so many edits at most.

    An edit leaves out, adds or replaces one letter, or swaps it with the next.
    """
    if name == known:
        return True
    if edits == 0 or abs(len(name) - len(known)) > edits:
        return False
    shorter = min(len(name), len(known))
    same = next((place for place in range(shorter) if name[place] != known[place]), shorter)
    name, known = name[same:], known[same:]
    return (
        _within(edits - 1, name[1:], known)
        or _within(edits - 1, name, known[1:])
        or _within(edits - 1, name[1:], known[1:])
        or (name[:2] == known[1::-1] and _within(edits - 1, name[2:], known[2:]))
    )


def misspelling(name: str, meant: str) -> str:
    """Return what a person does about such a variable."""
    return f"{name} is set, but no setting has that name: set {meant} if that is meant, else unset {name}"


def variable_name(field: dataclasses.Field[Any]) -> str:
    """Return the environment variable that a field is read from."""
    return str(field.metadata.get("env") or field.name.upper())


def _mistakes_together(settings: type, given: object) -> list[str]:
    """Return what is wrong with fields together; ``given`` lacks those that are wrong by themselves."""
    found: list[str] = []
    for name in dir(settings):
        check = getattr(settings, name)
        if getattr(check, _TOGETHER, False):
            try:
                mistake = check(given)
            except AttributeError:
                continue
            found += [] if mistake is None else [mistake]
    return found


def _as_shown(field: dataclasses.Field[Any], value: object) -> object:
    show = field.metadata.get("shown")
    return value if show is None or value is None else show(value)


def _parser(hint: Any) -> Callable[[str], Any]:
    hint = essential(hint)
    if typing.get_origin(hint) is typing.Literal:
        return _one_of(typing.get_args(hint))
    parsers: dict[Any, Callable[[str], Any]] = {
        str: str,
        int: _integer,
        float: float,
        bool: _boolean,
        timedelta: parse_duration,
        Nanoseconds: parse_timestamp,
        Path: Path,
    }
    return parsers[hint]


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("not a whole number") from None


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError("not true or false")


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return text

    return parse


def _parsed(hint: Any, text: str, metadata: Mapping[str, Any]) -> Any:
    try:
        value = _parser(hint)(text)
    except ValueError as error:
        unit = metadata.get("unit")
        raise ValueError(f"{error} of {unit}" if unit else str(error)) from None
    return _checked(value, metadata)


def _checked(value: Any, bounds: Mapping[str, Any]) -> Any:
    least, most = bounds.get("least"), bounds.get("most")
    if least is not None and value < least:
        raise ValueError(f"at least {value_shown(type(least), least)}")
    if most is not None and value > most:
        raise ValueError(f"at most {value_shown(type(most), most)}")
    check = bounds.get("check")
    if check is not None:
        check(value)
    return value
