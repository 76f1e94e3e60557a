"""What happens when time passes: garbage is collected, what is older than the retention is gone."""

from datetime import timedelta

import grpc
import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from tests.integration.bigtable_front import Front, set_cell

pytestmark = pytest.mark.integration


def test_garbage_is_collected_by_itself_where_that_is_asked_for(new_processes: Processes) -> None:
    with emulators.bigtable_front(new_processes, garbage_seconds="0.05") as address, Front(address) as front:
        table = front.table("f", rules={"f": {"max_num_versions": 1}})
        table.write(b"a", set_cell("f", b"q", b"1", 1_000), set_cell("f", b"q", b"2", 2_000))
        stream = table.read(start=table.since)
        next(stream)

        (gone,) = next(stream).data_change.chunks

        assert gone.mutation.delete_from_column.time_range.start_timestamp_micros == 1_000
        assert table.rows() == {b"a": {("f", b"q", 2_000): b"2"}}


def test_what_is_older_than_the_retention_is_gone_and_an_idle_position_is_not(new_processes: Processes) -> None:
    with emulators.bigtable_front(new_processes) as address, Front(address) as front:
        rules = {"f": {"max_age": timedelta(hours=1)}}
        table = front.table("f", rules=rules, retention=timedelta(days=1), splits=[b"m"])
        soon = timedelta(milliseconds=20)
        busy = next(table.read(b"", b"m", heartbeat=soon)).heartbeat.continuation_token
        idle = next(table.read(b"m", b"", heartbeat=soon)).heartbeat.continuation_token
        table.write(b"a", set_cell("f", b"q", b"v"))
        assert front.control.collect_garbage(table.name).cells == 0
        front.control.advance_clock(timedelta(days=1, seconds=1).total_seconds())

        with pytest.raises(grpc.RpcError) as raised:
            next(table.read(b"", b"m", tokens=[busy]))

        assert raised.value.code() is grpc.StatusCode.OUT_OF_RANGE
        assert next(table.read(b"m", b"", tokens=[idle], heartbeat=soon)).HasField("heartbeat")
        assert front.control.collect_garbage(table.name).cells == 1
        assert table.rows() == {}
