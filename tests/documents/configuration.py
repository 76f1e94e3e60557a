"""`docs/reference/configuration.md`: every setting of every service, from the classes that read them."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from services.bigtable_reader.settings import Settings as BigtableReaderSettings
from services.cdc_consumer.settings import ReconcileSettings, SetupSettings, TablesSettings
from services.cdc_consumer.settings import Settings as ConsumerSettings
from services.dead_letter.settings import CommandSettings
from services.dead_letter.settings import Settings as DeadLetterSettings
from services.spanner_reader.settings import Settings as SpannerReaderSettings
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.settings import essential, hidden, value_shown, variable_name

FILE: Final = "reference/configuration.md"

SECTIONS: Final[Mapping[str, type]] = {
    "spanner_reader": SpannerReaderSettings,
    "bigtable_reader": BigtableReaderSettings,
    "cdc_consumer": ConsumerSettings,
    "cdc_consumer setup": SetupSettings,
    "cdc_consumer reconcile": ReconcileSettings,
    "cdc_consumer tables": TablesSettings,
    "dead_letter": DeadLetterSettings,
    "dead_letter, the commands": CommandSettings,
}

_TYPES: Final[Mapping[Any, str]] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    timedelta: "duration",
    Nanoseconds: "time",
    Path: "path",
}
_MEBIBYTE: Final = 1 << 20

_HEAD: Final = """# Configuration

<!-- Made from the settings classes by `make docs`; a test fails where they differ. Change those, not this file. -->

Every service reads its settings once, at its start, from environment variables. Missing or wrong settings end the
process with exit code 2 and one message that names all of them. The first line of the log (`service_started`) has the
settings and the version; secrets are `***` there.

A variable that is set to nothing counts as not set. Where a setting has no default, its meaning ends with what holds
instead, after a semicolon.

| Type | Is written |
|---|---|
| duration | a number and a unit: `500ms`, `10s`, `5m`, `2h`, `7d`; at most `36500d` |
| time | RFC 3339, up to nanoseconds: `2024-05-01T09:00:00.123456789Z` |
| `true` or `false` | `true`, `1`, `yes` or `false`, `0`, `no` |
| topic, subscription | its id, in GOOGLE_CLOUD_PROJECT, or its full name: `projects/P/topics/T` |

Services also read these variables:

| Variable | Meaning |
|---|---|
| `GOOGLE_APPLICATION_CREDENTIALS` | a file of credentials; else Application Default Credentials |
| `JAVA_HOME` | the Java of the consumer's Spark |
| `MILLRACE_VERSION` | what a service calls its version, in place of the one that its image was built with (`VERSION`) |
| `MILLRACE_USER` | who acts, for the dead-letter commands |
| `VISUAL`, `EDITOR` | what the dead-letter commands edit with |

Settings of tables are in the [tables file](tables-file.md).
"""


def text() -> str:
    """Return the whole document."""
    return "\n".join([_HEAD, *(line for title, settings in SECTIONS.items() for line in _section(title, settings))])


def _section(title: str, settings: type) -> Iterator[str]:
    hints = typing.get_type_hints(settings)
    yield f"## {title}\n"
    yield "| Variable | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    for field in sorted(dataclasses.fields(settings), key=lambda one: one.default is not dataclasses.MISSING):
        hint = hints[field.name]
        cells = (f"`{variable_name(field)}`", _type(hint, field), _default(hint, field), _meaning(field))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _type(hint: Any, field: dataclasses.Field[Any]) -> str:
    hint = essential(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " ".join(f"`{choice}`" for choice in typing.get_args(hint))
    unit = field.metadata["unit"]
    least, most = (_shown(hint, field.metadata[bound]) for bound in ("least", "most"))
    bounds = {
        (True, True): f", {least} to {most}",
        (True, False): f", at least {least}",
        (False, True): f", at most {most}",
        (False, False): "",
    }[least != "", most != ""]
    return (f"{_TYPES[hint]} of {unit}" if unit else _TYPES[hint]) + bounds


def _default(hint: Any, field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "**required**"
    if field.default is None:
        return ""
    whole = field.metadata["unit"] == "bytes" and field.default % _MEBIBYTE == 0
    return f"`{_shown(hint, field.default)}`" + (f" ({field.default // _MEBIBYTE} MiB)" if whole else "")


def _shown(hint: Any, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value_shown(hint, value))


def _meaning(field: dataclasses.Field[Any]) -> str:
    shown = field.metadata["shown"]
    secret = "" if shown is None else "; a secret, never logged" if shown is hidden else "; logged without its secrets"
    return str(field.metadata["description"]).replace("|", "\\|") + secret
