"""What somebody forged, or broke, does no lasting harm: it freezes no row and makes no healthy table look refused."""

from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.commands.status import exit_code
from services.cdc_consumer.core.stream.columns import Decoded, decode_messages
from services.cdc_consumer.core.stream.counts import Counts, TableNote
from services.cdc_consumer.core.types.sequence_array import first_sections
from services.cdc_consumer.ports import Mirror
from shared.contracts.change_batch import Change, Content, Header, Origin
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_change, a_header, a_message
from tests.unit.cdc_consumer.decoded import in_mode, planned
from tests.unit.cdc_consumer.status_world import LATEST, MICROS
from tests.unit.cdc_consumer.status_world import World as StatusWorld
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, header_of, messages_of, upsert
from tests.unit.cdc_consumer.world import NOW, World, an_end
from tests.unit.cdc_consumer.world import PUBLISHED as NOW_TIME

PUBLISHED = AN_HOUR_LATER // 1_000
DAY = timedelta(days=1) // timedelta(microseconds=1)
BOUND = PUBLISHED + DAY
YEAR_9999 = 253_402_300_799_999_999
"""The last microsecond of BigQuery's TIMESTAMP."""


def at(micros: int) -> str:
    return format_timestamp(Nanoseconds(micros * 1_000))


def decoded(
    *changes: Change, content: Content = "changes", origin: Origin = "stream", plan: str = "", replay: bool = False
) -> Decoded:
    header = msgspec.structs.replace(header_of(origin=origin), content=content, format=1 if content == "changes" else 2)
    published = datetime.fromtimestamp(PUBLISHED // 1_000_000, UTC)
    attributes = [{"replay_of": "x"} if replay else {}]
    messages = messages_of(batch_of(changes, header), attributes=attributes, published=published)
    return decode_messages(messages, AN_HOUR_LATER, planned(plan))


def reasons(found: Decoded) -> list[tuple[int | None, Reason]]:
    return [(each.change, each.reason) for each in found.poison]


@pytest.mark.parametrize("origin", ["stream", "snapshot", "replay"])
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("mode", ["mirror", "history", "both"])
def test_a_change_of_more_than_a_day_after_its_message_was_published_is_a_bad_sequence(
    origin: Origin, replay: bool, mode: str
) -> None:
    changes = [
        upsert(1, sequence=BOUND, committed=at(BOUND)),
        upsert(2, sequence=BOUND + 1),
        upsert(3, sequence=1, committed=at(BOUND + 1)),
        upsert(4, sequence=2**63),
        upsert(5, sequence="FFFFFFFFFFFFFFFF"),
        upsert(6, sequence=f"{BOUND:x}/FFFFFFFFFFFFFFFF"),
    ]
    found = decoded(*changes, origin=origin, replay=replay, plan=in_mode(mode))

    assert reasons(found) == [(change, Reason.BAD_SEQUENCE) for change in (1, 2, 3, 4)]
    assert all("more than a day after its message was published" in each.detail for each in found.poison)
    for table in found.tables:
        assert table.rows["id"].to_pylist() == [1, 6]


def test_an_entry_of_a_change_log_is_bounded_too() -> None:
    assert reasons(decoded(upsert(1), upsert(2, sequence=BOUND + 1), content="entries")) == [(1, Reason.BAD_SEQUENCE)]


def test_the_version_of_an_image_may_run_ahead_of_all_clocks_but_not_beyond_time() -> None:
    changes = [upsert(1, sequence=BOUND + 400 * DAY), upsert(2, sequence=YEAR_9999), upsert(3, sequence=YEAR_9999 + 1)]

    assert reasons(decoded(*changes, content="images")) == [(2, Reason.BAD_SEQUENCE)]


def test_no_clock_of_the_consumer_decides() -> None:
    """Its own may be wrong by years: what was published when is said by Pub/Sub."""
    world = World()
    world.clock.pass_time(timedelta(days=-4_000))
    message = a_message(upsert(1, '{"name":"a"}', sequence=NOW // 1_000, committed=format_timestamp(NOW)))

    assert world.apply({**message, "publish_time": NOW_TIME}).dead_letters == {}
    assert world.names() == {1: "a"}


NUMBERS = st.builds(four_sections, st.integers(0, 2**64 - 1), st.integers(0, 9)).map(str)


@given(st.lists(st.one_of(st.just(""), NUMBERS)))
def test_the_first_section_of_a_whole_column_is_that_of_each(texts: list[str]) -> None:
    expected = [parse_sequence(text).sections[0] if text else 0 for text in texts]
    for column in (texts, [text.lower() for text in texts], [text[:16].lstrip("0") or text[:1] for text in texts]):
        assert first_sections(pa.array(column, pa.string())).tolist() == expected


@pytest.mark.parametrize("age", [timedelta(0), timedelta(days=3)])
@pytest.mark.parametrize("since", [NOW // 1_000 + DAY + 1, 2**63, 2**64 - 1])
def test_the_end_of_a_snapshot_of_a_time_to_come_is_a_dead_letter_and_is_not_believed(
    since: int, age: timedelta
) -> None:
    world = World()
    counts = world.apply(an_end(since=since, published=NOW_TIME - age))

    assert (counts.dead_letters, counts.acked) == ({"bad_sequence": 1}, 1)
    assert world.tables.complete_since == {}
    world.apply(an_end(since=NOW // 1_000))
    assert world.tables.complete_since == {"planes": NOW // 1_000}


JUNK = TableNote(unfit="no_primary_key: table planes")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (a_header(key=()), "no_primary_key: "),
        (a_header(columns=(("id", "BOOL"), ("name", "STRING"))), "schema_conflict: "),
    ],
)
def test_a_junk_batch_that_names_a_real_table_does_not_make_it_look_refused(header: Header, why: str) -> None:
    """Whether the table is busy, or so quiet that a restart knows it by its mirror alone."""
    junk = a_message(upsert(1, "{}"), header=header)
    consumer = World()
    counts = consumer.apply(a_message(a_change(1))).tables, consumer.apply(junk).tables
    assert counts[1]["planes"].unfit.startswith(why)
    metrics = ConsumerMetrics(registry := CollectorRegistry(), consumer.clock)
    for quiet in (True, False):
        world = StatusWorld()
        metrics.show_tables(world.status.failing, world.status.refused, world.status.pending_resync)
        world.mirrors = [Mirror("planes", MICROS)] if quiet else []
        world.states()
        for tables in counts[quiet:]:
            world.take(Counts(tables=tables))
        assert world.states() == {"planes": "running"}
        assert exit_code(world.document()) == 0
        assert set(world.status.troubled()) == set()
        assert registry.get_sample_value("millrace_consumer_refused_tables") == 0


def test_a_table_that_was_never_well_is_refused_at_once_and_until_it_is() -> None:
    world = StatusWorld()
    world.take(Counts(tables={"planes": JUNK}))
    world.clock.pass_time(timedelta(days=3))
    assert world.states() == {"planes": "refused"}
    assert set(world.status.troubled()) == set(world.status.refused()) == {"planes"}
    world.take(Counts(tables={"planes": TableNote(latest=LATEST)}))
    assert world.states() == {"planes": "running"}


def test_one_that_was_well_is_refused_while_nothing_of_it_fits_any_more() -> None:
    world = StatusWorld()
    world.take(Counts(tables={"planes": TableNote(latest=LATEST)}))
    for _ in range(3):
        world.take(Counts(tables={"planes": JUNK}))
        world.clock.pass_time(timedelta(seconds=30))
    (trouble,) = world.table("planes")["troubles"]
    assert (trouble["state"], trouble["since"], trouble["why"]) == ("refused", format_timestamp(NOW), JUNK.unfit)
    world.take(Counts(tables={"planes": JUNK.plus(TableNote(latest=LATEST))}))
    assert world.states() == {"planes": "running"}, "junk beside good changes"


def test_it_is_not_called_so_for_ever() -> None:
    world = StatusWorld()
    world.take(Counts(tables={"planes": TableNote(latest=LATEST)}))
    for _ in range(2):
        world.take(Counts(tables={"planes": JUNK}))
        world.clock.pass_time(timedelta(hours=2))
    assert world.states() == {"planes": "refused"}
    world.clock.pass_time(timedelta(days=1))
    assert world.states() == {"planes": "running"}
    world.take(Counts(tables={"planes": JUNK}))
    assert world.states() == {"planes": "running"}


HOURS = timedelta(hours=1)


@pytest.mark.parametrize(
    ("age", "pending"), [(47 * HOURS, False), (26 * HOURS + timedelta(seconds=1), False), (26 * HOURS, True)]
)
def test_a_snapshot_row_that_no_reader_publishes_takes_no_completeness_from_its_mirror(
    age: timedelta, pending: bool
) -> None:
    """A row that was days old when it was published is forged. One that then waited in Pub/Sub for days is not."""
    world = World()
    header = msgspec.structs.replace(a_header(), origin="snapshot")
    read = NOW // 1_000 - timedelta(hours=48) // timedelta(microseconds=1)
    began = datetime.fromtimestamp(read / 1e6, UTC)
    world.apply(an_end(since=read, published=began))
    world.tables.complete_since["planes"] = read
    row = upsert(1, '{"name":"a"}', sequence=1, committed=at(read + 3_600_000_000))
    published = began + timedelta(hours=1) + age
    counts = world.apply({**a_message(row, header=header), "publish_time": published})

    assert counts.dead_letters == ({} if pending else {"too_old_to_be_safe": 1})
    assert world.tables.pending_resync == ({"planes": "snapshot_rows_too_old"} if pending else {})
    assert ("planes" in world.tables.complete_since) is not pending


@pytest.mark.parametrize("name", ["a b.c", "x" * 90 + "!", "x.y\x00", ".", "a..b"])
def test_the_forged_name_of_a_table_names_no_dataset(name: str) -> None:
    changes, status = World(), StatusWorld()
    status.take(changes.apply(a_message(a_change(1), header=a_header(name))))
    status.states()
    assert status.asked_of == set()
