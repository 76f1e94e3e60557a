"""Rows are held by one at a time, in turn, and the table by nobody else."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emulators.bigtable_streams.row_locks import RowLocks

KEYS = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3)
HOLDERS = st.lists(st.tuples(KEYS | st.none(), st.integers(0, 4)), min_size=1, max_size=8)
"""What each wants, rows or the table, and after how many steps it is told to give up (0: never)."""


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 20))


@given(HOLDERS)
def test_no_row_is_held_twice_and_everyone_gets_a_turn(holders: list[tuple[list[bytes] | None, int]]) -> None:
    async def scene() -> None:
        locks, locked, served = RowLocks(), set[bytes](), 0

        async def lock(keys: list[bytes] | None) -> None:
            nonlocal served
            wanted = {b"a", b"b", b"c"} if keys is None else set(keys)
            async with locks.table() if keys is None else locks.rows(keys):
                assert not locked & wanted
                locked.update(wanted)
                await asyncio.sleep(0)
                locked.difference_update(wanted)
                served += 1

        tasks = [asyncio.create_task(lock(keys)) for keys, _ in holders]
        for step in range(1, 5):
            await asyncio.sleep(0)
            for task, (_, gives_up) in zip(tasks, holders, strict=True):
                if gives_up == step and not locked:
                    task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        before = served
        await lock(None)
        assert served == before + 1, "nothing is left held"

    run(scene())
