"""The settings of the services that are up, in files for a shell, so that any command of theirs can be typed."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.platform.services import AnyPipeline, Flow, letters_in
from deploy.local.platform.stack import reader_name


def write_settings_files(directory: Path, flow: Flow, readers: Sequence[AnyPipeline]) -> None:
    """Write ``<service>.env`` for each; a shell that has read one has what its commands need.

    A command that compares or sweeps reads two: the consumer's, and that of the source's reader.
    """
    for reader in readers:
        _write(directory / f"{reader_name(reader)}.env", reader.reader_environment())
    _write(directory / "cdc_consumer.env", flow.consumer_environment(directory / "cdc_consumer-checkpoint"))
    _write(directory / "dead_letter.env", flow.dead_letter_environment(letters_in(directory)))


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(settings.items())))
