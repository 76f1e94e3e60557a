"""Under which number the rows of a snapshot are published: above all that was published before it was requested."""

import asyncio
from datetime import timedelta

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.snapshot.snapshot_source import BigtableSnapshotSource, SurveyedSnapshot
from services.bigtable_reader.core.changes.images import CellVersion
from services.bigtable_reader.core.changes.refused import Made
from services.bigtable_reader.core.snapshot.snapshot import SnapshotPlace, highest_reserved
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, Saved, StreamRange
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, SetCell
from shared.contracts.change_sequence import four_sections
from shared.reading.snapshots import SnapshotOptions, SnapshotPublisher
from tests.fakes.bigtable_reader import FakeDeadLetterSink, FakePublisher, Topic
from tests.fakes.bigtable_snapshots import FakeScan, FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH, Bigtable, VirtualClock
from tests.fakes.reader_metrics import BigtableMetrics
from tests.unit.bigtable_reader.readings import a_partition, a_record, image_maker

LAST = EPOCH + 5
"""The version of the last image that was published before the snapshot was requested; its reader has stopped since."""


def surveyed(min_version: int, reserved_up_to: int | None = None) -> BigtablePartitionSurvey:
    """Return a survey of one key range that its reader has released, or another has claimed and not saved yet.

    With ``reserved_up_to`` a reader makes versions up to that.
    """
    stream_range: StreamRange = a_partition(min_version=EPOCH).stream_range
    saved = Saved(
        "", 1, "RUNNING", EPOCH, free=True, min_version=min_version, reserved_up_to=reserved_up_to or min_version
    )
    return BigtablePartitionSurvey((stream_range,), {stream_range.id: saved}, frozenset({"reader"}), EPOCH)


def test_of_what_has_one_version_the_later_snapshots_row_wins_and_of_one_snapshot_the_later_claims() -> None:
    images, cells = image_maker(), {"f": {b"q": [CellVersion(EPOCH, b"v")]}}
    places = [SnapshotPlace(LAST, run, fence, EPOCH) for run, fence in ((1, 1), (1, 2), (2, 1))]
    made = [
        images.image(b"k", cells, a_record(b"k"), LAST),
        *(images.row(b"k", cells, place) for place in places),
        images.image(b"k", cells, a_record(b"k"), LAST + 1),
    ]
    sequences = [one.change.sequence for one in made]

    assert sequences == sorted(set(sequences))


def test_a_version_that_its_reader_may_have_made_by_now_is_not_above_what_a_snapshot_begins_above() -> None:
    assert highest_reserved(surveyed(EPOCH, reserved_up_to=LAST), ALL_KEYS) == LAST


async def test_the_last_row_that_was_published_before_a_snapshot_is_older_than_its_end() -> None:
    """Else such a row that was lost without a record (its family was dropped) would stay in the mirror for ever."""
    images, table, raised = image_maker(), SnapshotTable(), list[tuple[KeyRange, int]]()
    image = images.image(b"gone", {"f": {b"q": [CellVersion(EPOCH, b"v")]}}, a_record(b"gone"), LAST)
    assert isinstance(image, Made)

    rows = Bigtable()
    rows.write(b"there", SetCell("f", b"q", EPOCH, b"v"))
    store = FakeSnapshotStore(table, "reader", timedelta(seconds=10))
    source = BigtableSnapshotSource(
        store,
        FakeScan(rows),
        MirroredRows(images, [ALL_KEYS]),
        DeadLettering(FakeDeadLetterSink(), VirtualClock()),
        lambda keys, min_version: raised.append((keys, min_version)),
        BigtableMetrics(),
    )
    publisher = SnapshotPublisher(FakePublisher(Topic()), SnapshotOptions(), {}, lambda _error: None)
    await store.request([ALL_KEYS], EPOCH, again=True, whole=True)
    source.surveyed(surveyed(LAST), 0.0)
    source.learn(SurveyedSnapshot(await store.survey(), surveyed(LAST)))
    (owned,) = await source.claim((), 1)
    reading = asyncio.create_task(source.read(owned, publisher))
    await asyncio.sleep(1)
    source.surveyed(surveyed(LAST), asyncio.get_running_loop().time())
    await asyncio.sleep(1)
    source.learn(SurveyedSnapshot(await store.survey(), surveyed(LAST)))
    for _keys, min_version in raised:  # as the owner of the key range does
        source.surveyed(surveyed(min_version), asyncio.get_running_loop().time())
    await asyncio.wait_for(reading, 60)
    owned.complete = True
    await source.save([owned])
    assert table.snapshot is not None
    assert table.snapshot.complete_since is not None
    assert image.change.sequence < str(four_sections(table.snapshot.complete_since))
