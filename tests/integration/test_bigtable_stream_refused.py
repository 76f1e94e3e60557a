"""What the change stream refuses, from the front before the real emulator: positions, fixes, what may work later."""

from collections.abc import Sequence

import pytest

from services.bigtable_reader.core.stream.records import (
    ALL_KEYS,
    BigtableStreamQuery,
    Heartbeat,
    KeyRange,
    StreamRecord,
)
from services.bigtable_reader.ports import PositionLostError, StreamGoneError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.streams import connections
from tests.integration.bigtable_front import (
    Front,
    FrontTable,
    set_cell,
)
from tests.integration.bigtable_streams import after, at, opened, query, read_until, run, to_the_end
from tests.integration.bigtable_streams import whole_again as whole_again  # noqa: PLC0414  a fixture

pytestmark = pytest.mark.integration


async def _first(table: FrontTable, asked: BigtableStreamQuery, profile: str = "") -> StreamRecord:
    async with opened(table, profile) as stream:
        return (await read_until(stream, asked, bool))[0]


def test_a_position_that_is_not_kept_any_more_stops_with_the_choices(front: Front) -> None:
    table = front.table("f")
    table.write(b"k", set_cell("f", b"q", b"v", 0))
    (change,) = to_the_end(table)
    table.write(b"k", set_cell("f", b"q", b"w", 0))
    front.control.trim(table.name)

    for position in (after(change.token), at(table.since - 10_000_000), after("not a token of anyone's")):
        with pytest.raises(PositionLostError, match=r"The choices: \(1\)"):
            run(_first(table, query(position)))


def test_a_start_in_the_future_is_refused_with_the_choices(front: Front) -> None:
    table = front.table("f")

    with pytest.raises(PositionLostError, match="not in the future"):
        run(_first(table, query(at(front.control.describe(table.name).now + 3_600_000_000))))


def test_tokens_that_do_not_cover_the_range_are_a_lost_position(front: Front) -> None:
    table = front.table("f", splits=[b"p"])
    left = KeyRange(b"", b"p")
    beat = run(_first(table, query(at(table.since), left)))
    assert isinstance(beat, Heartbeat)

    with pytest.raises(PositionLostError):
        run(_first(table, query(after(beat.token, left), ALL_KEYS)))


def test_a_table_without_a_stream_is_refused_with_how_to_enable_it(front: Front) -> None:
    table = front.table("f", retention=None)
    for call in (lambda: _first(table, query(at(1))), lambda: _partitions(table)):
        with pytest.raises(MisconfiguredError, match="--change-stream-retention-period=7d") as raised:
            run(call())
        assert not isinstance(raised.value, PositionLostError)


async def _partitions(table: FrontTable, profile: str = "") -> Sequence[KeyRange]:
    async with opened(table, profile) as stream:
        return await stream.initial_partitions()


def test_a_profile_of_many_clusters_is_refused_with_how_to_make_another(front: Front) -> None:
    table = front.table("f")
    profile = front.app_profile(multi_cluster_routing_use_any={})
    for call in (lambda: _first(table, query(at(table.since)), profile), lambda: _partitions(table, profile)):
        with pytest.raises(MisconfiguredError, match=r"app-profiles create .*--route-to=") as raised:
            run(call())
        assert not isinstance(raised.value, PositionLostError)


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION"])
@pytest.mark.parametrize(
    ("message", "fix", "gone"),
    [
        ("The app profile must use single-cluster routing", r"app-profiles create .*--route-to=", False),
        ("Change stream is not enabled on the table", "--change-stream-retention-period=7d", True),
    ],
)
def test_a_profile_or_a_stream_that_is_refused_is_no_lost_position_whatever_the_code(
    whole_again: Front, status: str, message: str, fix: str, gone: bool
) -> None:
    table = whole_again.table("f")
    whole_again.control.add_fault(
        method="ReadChangeStream", status=status, message=message, containing=table.name.encode()
    )

    with pytest.raises(MisconfiguredError, match=fix) as raised:
        run(_first(table, query(at(table.since))))
    assert not isinstance(raised.value, PositionLostError)
    assert isinstance(raised.value, StreamGoneError) is gone


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        ("PERMISSION_DENIED", "roles/bigtable.reader"),
        ("NOT_FOUND", "there is no table .*t-"),
        ("UNIMPLEMENTED", "an emulator needs a front"),
    ],
)
def test_an_error_that_needs_a_person_names_the_fix(whole_again: Front, status: str, fix: str) -> None:
    table = whole_again.table("f")
    for method in ("ReadChangeStream", "GenerateInitialChangeStreamPartitions"):
        whole_again.control.add_fault(method=method, status=status, containing=table.name.encode())

    for call in (lambda: _first(table, query(at(table.since))), lambda: _partitions(table)):
        with pytest.raises(MisconfiguredError, match=fix):
            run(call())


def test_a_stream_that_is_silent_for_three_heartbeats_is_closed(
    whole_again: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_OPENING_SECONDS", 0.1)
    table = whole_again.table("f")
    whole_again.control.add_fault(method="ReadChangeStream", action="stall", containing=table.name.encode())

    with pytest.raises(TransientError, match="no record and no heartbeat in time"):
        run(_first(table, query(at(table.since))))
