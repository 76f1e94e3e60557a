"""Updates that hold only what changed, whatever happens to rows, columns, readers and versions: what is published is
true, or says that it is not, and the newest of each row, in the mirror or in a history alone, ends up equal. What a
pause drops is under a resync request until a later snapshot, however late a reader hears of the pause.

The readers are the real ones, with all of their core; the ports are in memory, the time is virtual.
"""

from collections.abc import Collection
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.contracts.tables_file import Mode
from tests.fakes.pauses import FakePauseStore
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.spanner_reader.captured_histories import KEYS, KINDS, play
from tests.unit.spanner_reader.capturing import (
    CAPTURE_TYPES,
    SINGERS,
    CapturedDatabase,
    CapturingWorld,
    is_reconstructed,
    key_of,
)

pytestmark = pytest.mark.usefixtures("quiet")


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    capture=st.sampled_from(CAPTURE_TYPES),
    mode=st.sampled_from(("mirror", "both", "history")),
    retention=st.sampled_from((timedelta(hours=1), timedelta(seconds=20), timedelta(seconds=1))),
    breaks=st.sampled_from((0.0, 0.05)),
    kinds=st.frozensets(st.sampled_from(sorted(KINDS))),
    another_table=st.booleans(),
)
def test_what_is_published_is_true_and_the_newest_of_each_row_ends_up_equal(
    seed: int,
    capture: str,
    mode: Mode,
    retention: timedelta,
    breaks: float,
    kinds: Collection[str],
    another_table: bool,
) -> None:
    database = CapturedDatabase(capture, retention, unwatched=frozenset({"unwatched"}), another_table=another_table)
    world = CapturingWorld(Random(seed), database, mode, breaks)

    async def scenario() -> None:
        await play(world, kinds)
        assert {header.table for header, _change in world.published} <= {SINGERS}
        world.check_versions()
        newest = dict(sorted(world.database.truth))
        stale = {key for key, sequence in newest.items() if world.pending_resync() and world.may_be_dropped(sequence)}
        mirror, rows = world.mirror(), world.database.now.watched_rows
        assert {key: mirror.get(key) for key in KEYS if key not in stale} == {
            key: rows.get(key) for key in KEYS if key not in stale
        }
        await FakePauseStore(world.world.pauses).resume(SINGERS)
        world.begin_snapshot()
        await world.end_snapshot()
        assert not world.pending_resync()
        assert world.mirror() == rows

    run_in_virtual_time(scenario())
    if world.mode != "mirror":
        published = {(key_of(change), change.sequence) for _header, change in world.published}
        kept = {(key, sequence) for key, sequence in world.database.truth if not world.may_be_dropped(sequence)}
        assert kept <= published <= world.database.truth.keys()
    if world.database.retention == timedelta(hours=1):
        assert not any(is_reconstructed(change) for _header, change in world.published)
