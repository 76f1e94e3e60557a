"""What the commands beside the service are."""

import argparse
from collections.abc import Mapping
from typing import Final

from shared.runtime.commands import Command, without_arguments

PROGRAM: Final = "python -m services.cdc_consumer"


def setup_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``setup``: there are none."""
    return without_arguments(
        f"{PROGRAM} setup",
        "Make the topics and subscriptions that are missing, and check those that are there.",
    )


COMMANDS: Final[Mapping[str, Command]] = {
    "setup": Command("make the topics and subscriptions that are missing", setup_parser),
    "doctor": Command("look whether all that the consumer needs is there and right"),
    "status": Command("ask the running consumer how each table is"),
    "sweep": Command("delete from a mirror what its source does not have any more"),
    "reconcile": Command("compare mirrors with their source, value by value"),
}
