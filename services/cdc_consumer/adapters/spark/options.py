"""The settings of our data source and sink as Spark carries them: one option, ``settings``, the JSON of a dataclass."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from shared.contracts.errors import MisconfiguredError

_OPTION: Final = "settings"
_Settings = TypeVar("_Settings")


def encode_options(settings: object) -> dict[str, str]:
    """Return the options for Spark that carry a dataclass to its processes."""
    return {_OPTION: msgspec.json.encode(settings).decode()}


def decode_options(settings: type[_Settings], options: Mapping[str, str]) -> _Settings:
    """Return the dataclass in Spark's options; MisconfiguredError names the field that is missing or malformed."""
    try:
        return msgspec.json.decode(options.get(_OPTION, "{}"), type=settings)
    except msgspec.MsgspecError as error:
        raise MisconfiguredError(
            "spark-option-invalid", f"option {_OPTION}, the JSON of {settings.__name__}: {error}"
        ) from error
