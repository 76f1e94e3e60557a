"""Settings: one frozen dataclass per service, read once from the environment, every mistake in one error."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from shared.contracts.durations import parse_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp

T = TypeVar("T")

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def setting(
    description: str,
    *,
    default: Any = dataclasses.MISSING,
    env: str | None = None,
    least: Any = None,
    most: Any = None,
    check: Callable[[Any], None] | None = None,
) -> Any:
    """Declare a field of a Settings class: what it means, its variable's name if not its own, its bounds.

    ``check`` raises ValueError for values that no bounds describe.
    """
    metadata = {"description": description, "env": env, "least": least, "most": most, "check": check}
    return dataclasses.field(default=default, metadata=metadata)


def read_settings(settings: type[T], environ: Mapping[str, str]) -> T:
    """Return the settings that the environment gives; MisconfiguredError naming every missing or malformed variable.

    A variable set to nothing counts as not set. Durations are written ``500ms``, ``10s``, ``5m``, ``2h`` or ``7d``.
    What only shows when the fields are seen together, the class's ``__post_init__`` raises as ValueError, its
    arguments one mistake each.
    """
    hints = typing.get_type_hints(settings)
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        variable = variable_name(field)
        text = environ.get(variable, "").strip()
        if not text:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                mistakes.append(f"{variable} is not set ({field.metadata.get('description', 'required')})")
            continue
        try:
            values[field.name] = _checked(_parser(hints[field.name])(text), field.metadata)
        except ValueError as error:
            mistakes.append(f"{variable}={text!r}: {error}")
    if not mistakes:
        try:
            return settings(**values)
        except ValueError as error:
            mistakes += map(str, error.args)
    raise MisconfiguredError("the settings need mending:\n  " + "\n  ".join(mistakes))


def variable_name(field: dataclasses.Field[Any]) -> str:
    """Return the environment variable that a field is read from."""
    return str(field.metadata.get("env") or field.name.upper())


def _parser(hint: Any) -> Callable[[str], Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
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


def _checked(value: Any, bounds: Mapping[str, Any]) -> Any:
    least, most = bounds.get("least"), bounds.get("most")
    if least is not None and value < least:
        raise ValueError(f"at least {least}")
    if most is not None and value > most:
        raise ValueError(f"at most {most}")
    check = bounds.get("check")
    if check is not None:
        check(value)
    return value
