"""The commands ``pause`` and ``resume`` of the stream. The running readers follow within seconds.

A reader need not run: the pause is kept with the key ranges of the key space, and the next one finds it.
"""

from typing import TextIO

from services.bigtable_reader.ports import KeyRangePartitionStore


async def pause(store: KeyRangePartitionStore, out: TextIO) -> int:
    """Pause the stream; return 0. Pausing what is paused changes nothing."""
    what = "is paused now" if await store.pause() else "was paused already"
    out.write(f"the stream {what}: nothing is read until `resume`; `status` says for how long that is kept\n")
    return 0


async def resume(store: KeyRangePartitionStore, out: TextIO) -> int:
    """Let the stream go on; return 0, or 1 where it was not paused."""
    resumed = await store.resume()
    out.write("the stream goes on where it was\n" if resumed else "the stream was not paused\n")
    return int(not resumed)
