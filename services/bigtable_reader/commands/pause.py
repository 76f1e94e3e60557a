"""The commands ``pause`` and ``resume`` of the stream. The running readers follow within seconds.

A reader need not run: the pause is kept with the key ranges of the key space, and the next one finds it.
"""

from typing import TextIO

from services.bigtable_reader.ports import KeyRangePartitionStore
from shared.reading.answers import answer_pause, answer_resume


async def pause(store: KeyRangePartitionStore, out: TextIO, *, as_json: bool) -> int:
    """Pause the stream; return 0. Pausing what is paused changes nothing."""
    return answer_pause({None: await store.pause()}, out, as_json=as_json)


async def resume(store: KeyRangePartitionStore, out: TextIO, *, as_json: bool) -> int:
    """Let the stream go on; return 0, or 1 where it was not paused."""
    return answer_resume({None: await store.resume()}, [], out, as_json=as_json)
