"""What a doctor says it costs to complete updates: counted as the reader reads, from a bounded part of the stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from services.spanner_reader.adapters.doctor.capture_sample import MOST_RECORDS, cost_of_completing
from services.spanner_reader.core.stream.completion_cost import CompletionSample
from services.spanner_reader.core.stream.records import (
    ROOT,
    DataChangeRecord,
    PartitionToken,
    SpannerStreamQuery,
    StreamRecord,
)
from services.spanner_reader.ports import StartTooOldError
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_reader import FakeChangeStream, Script
from tests.unit.spanner_reader.scripts import a_record, at, children

NOW = at("10:00:00")
P, Q = PartitionToken("p"), PartitionToken("q")


def later(milliseconds: int) -> Nanoseconds:
    """Return a time in the minute before now."""
    return Nanoseconds(at("09:59:30") + milliseconds * 1_000_000)


def an_update(time: Nanoseconds, key: int = 1, *, mods: int = 1, **more: Any) -> DataChangeRecord:
    """Return an update of rows ``key``, ``key + 1``, ... as a stream of the default capture type has it."""
    update = replace(a_record(time, key, mods=mods), mod_type="UPDATE", value_capture_type="OLD_AND_NEW_VALUES")
    return replace(update, **more)


def counted(*records: DataChangeRecord | tuple[PartitionToken, DataChangeRecord]) -> tuple[int, int, int, int]:
    """Return changes, incomplete ones, rows and reads."""
    sample = CompletionSample()
    for one in records:
        sample.add(*((P, one) if isinstance(one, DataChangeRecord) else one))
    return sample.changes, sample.incomplete, sample.rows, sample.reads


def test_updates_of_a_table_within_a_tenth_of_a_second_share_a_read() -> None:
    assert counted(an_update(later(0), 1), an_update(later(99), 2)) == (2, 2, 2, 1)
    assert counted(an_update(later(0), 1), an_update(later(100), 2)) == (2, 2, 2, 2)
    assert counted(an_update(later(0), 1), an_update(later(1), 1, mods=3)) == (4, 4, 3, 1)


def test_tables_and_partitions_share_no_read() -> None:
    assert counted(an_update(later(0)), an_update(later(1), table="Albums")) == (2, 2, 2, 2)
    assert counted((P, an_update(later(0))), (Q, an_update(later(1), 2))) == (2, 2, 2, 2)


def test_inserts_deletes_and_whole_rows_cost_nothing() -> None:
    assert counted(
        replace(a_record(later(0)), value_capture_type="OLD_AND_NEW_VALUES"),
        an_update(later(1), mod_type="DELETE"),
        an_update(later(2), value_capture_type="NEW_ROW"),
        an_update(later(3), value_capture_type="NEW_ROW_AND_OLD_VALUES"),
    ) == (4, 0, 0, 0)


def test_a_row_whose_first_change_of_a_batch_is_whole_is_not_read() -> None:
    insert = replace(a_record(later(1), 2), value_capture_type="OLD_AND_NEW_VALUES")
    assert counted(an_update(later(0), 1), insert, an_update(later(2), 2)) == (3, 2, 1, 1)


async def cost(records: dict[PartitionToken, Sequence[StreamRecord]]) -> str:
    return await cost_of_completing(FakeChangeStream(Script(records)), NOW)


async def test_every_partition_of_the_last_minute_is_read_once_and_its_children_too() -> None:
    minute_ago = at("09:59:00")
    text = await cost(
        {
            ROOT: [children(minute_ago, "p", "q")],
            P: [
                an_update(at("09:58:59"), 7),
                an_update(later(0), 1),
                children(later(9), "both", parents=("p", "q")),
            ],
            Q: [an_update(later(5), 2), children(later(9), "both", parents=("p", "q"), sequence="2")],
            PartitionToken("both"): [a_record(later(20), 3), an_update(NOW, 1), an_update(at("10:00:01"), 4)],
        }
    )
    assert text == (
        "sample of the last 60 s: changes 4, incomplete 3, rows to read 3, reads 3; for each change 0.75 rows and 0.75 "
        "reads"
    )


async def test_a_minute_without_changes_or_with_whole_ones_reports_so() -> None:
    assert (await cost({ROOT: [children(at("09:59:00"), "p")], P: []})).endswith("nothing changed in the last 60 s")
    assert await cost({ROOT: [children(at("09:59:00"), "p")], P: [a_record(later(0))]}) == (
        "sample of the last 60 s: changes 1, incomplete 0, rows to read 0, reads 0"
    )


async def test_a_sample_is_bounded_in_records_and_in_time() -> None:
    many = [an_update(later(n)) for n in range(MOST_RECORDS + 1)]
    root: Sequence[StreamRecord] = [children(at("09:59:00"), "p", "q")]
    text = await cost({ROOT: root, P: many, Q: []})
    assert text.startswith(f"sample of a part of the last 60 s: changes {MOST_RECORDS:,},")

    class Silent(FakeChangeStream):
        async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
            if query.token == ROOT:
                yield root[:1]
            elif query.token == P:
                yield [an_update(later(0))]
            else:
                await asyncio.Event().wait()

    async with asyncio.timeout(60):
        text = await cost_of_completing(Silent(Script({})), NOW)
    assert text.startswith("sample of a part of the last 60 s: changes 1,")


async def test_a_stream_that_is_younger_is_read_from_later_on() -> None:
    class Young(FakeChangeStream):
        async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
            if query.start < at("09:59:50"):
                raise StartTooOldError("made-up", "the stream began later")
            yield [an_update(at("09:59:58"))]

    young = Young(Script({}))
    assert (await cost_of_completing(young, NOW)).startswith("sample of the last 4 s: changes 1,")
    assert (await cost_of_completing(young, at("09:59:50.5"))).endswith("the stream is too young")


async def test_what_spanner_refuses_is_reported_and_is_no_failure() -> None:
    class Refusing(FakeChangeStream):
        async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
            if query.token == ROOT:
                raise MisconfiguredError("made-up", "the role may not")
            yield [an_update(NOW)]

    assert (
        await cost_of_completing(Refusing(Script({})), NOW)
    ) == "what that costs is not known: the role may not [made-up]"
