"""Readers of snapshots that run while a test does something else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from shared.reading.snapshots import Snapshots


@asynccontextmanager
async def reading(*readers: Snapshots[Any, Any]) -> AsyncIterator[Sequence["asyncio.Task[None]"]]:
    """Let readers read meanwhile; at the end of the block they are stopped, and what ended one before is raised."""
    tasks = [asyncio.create_task(reader.keep_reading()) for reader in readers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
