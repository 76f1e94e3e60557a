"""The commands ``pause`` and ``resume`` of the stream. The running readers follow within seconds.

A reader need not run: the pause is kept with the pieces of the key space, and the next one finds it.
"""

import argparse
from collections.abc import Sequence
from typing import TextIO

from services.bigtable_reader.ports import PartitionStore
from shared.runtime.commands import without_arguments


def pause_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``pause``: there are none."""
    return without_arguments(
        "python -m services.bigtable_reader pause",
        "Pause the stream: nothing is read, and nothing lost for as long as the stream keeps it.",
    )


def resume_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``resume``: there are none."""
    return without_arguments("python -m services.bigtable_reader resume", "Let the stream go on where it was paused.")


async def pause(arguments: Sequence[str], store: PartitionStore, out: TextIO) -> int:
    """Pause the stream; return 0. Pausing what is paused changes nothing."""
    pause_parser().parse_args(arguments)
    what = "is paused now" if await store.pause() else "was paused already"
    out.write(f"the stream {what}: nothing is read until `resume`; `status` says for how long that is kept\n")
    return 0


async def resume(arguments: Sequence[str], store: PartitionStore, out: TextIO) -> int:
    """Let the stream go on; return 0, or 1 where it was not paused."""
    resume_parser().parse_args(arguments)
    resumed = await store.resume()
    out.write("the stream goes on where it was\n" if resumed else "the stream was not paused\n")
    return int(not resumed)
