"""The worked example of Spanner's documentation, a transfer between two accounts, from its records to tables.

Its updates name every column, so nothing is read, though the stream has the default capture type.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import decode_messages
from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.stream.completer import Completer, Completion
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.partitions import SpannerPartition
from services.spanner_reader.core.stream.records import PartitionToken
from services.spanner_reader.ports import WatchedTable
from shared.contracts.change_batch import encode_batch
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.cdc_consumer.wire import messages_of
from tests.unit.spanner_reader.accounts import ACCOUNTS, COMMIT, transfer

TABLE = ACCOUNTS.name
SECOND = 1_000_000_000


class UnreadRows(FakeRows):
    """Rows that nobody may ask for."""

    def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Refuse."""
        raise AssertionError(f"{keys} are read, and the records name every column")


async def publish() -> Topic:
    """Return what is published of the two records, each of which comes in a partition of its own."""
    topic, changes = Topic(), ChangeMaker("//spanner/s", 16, {TABLE: ("AccountId",)})
    catalog = FakeCatalog(ACCOUNTS)
    catalog.time = COMMIT + SECOND
    completion = Completion(
        UnreadRows(Versions(SteppingClock())),
        MirroredTables(catalog, changes, lambda _table: True),
        ConfirmedPublishing(FakePublisher(topic), FakeMetrics(), lambda _error: None),
        lambda _table: True,
        FakeMetrics(),
    )
    for record in transfer():
        token = PartitionToken(record.record_sequence)
        held = SpannerOwnedPartition(SpannerPartition(token=token, start=COMMIT, watermark=COMMIT))
        async with Completer(completion, held, Stop()).working() as completer:
            completer.arrived(record)
            await completer.publish(record, *changes.changes(record))
            await completer.finished()
            await held.confirmed()
    return topic


def test_the_transfer_of_the_documentation_ends_in_a_mirror_and_in_a_history_with_the_old_balances() -> None:
    topic = run_in_virtual_time(asyncio.wait_for(publish(), 60))
    messages = messages_of(*(encode_batch(header, changes) for header, changes in topic.batches))
    plan = Plan(read_tables_file('[defaults]\nmode = "both"\n'))
    decoded = decode_messages(messages, Nanoseconds(COMMIT + SECOND), plan)

    assert not decoded.poison
    tables = {one.definition.name: one.rows.to_pylist() for one in decoded.tables}
    balances = {row["AccountId"]: row["Balance"] for row in tables[TABLE]}
    assert balances == {"Id1": 1000, "Id2": 2000}
    history = {row["AccountId"]: row for row in tables[f"{TABLE}_changelog"]}
    before = {key: json.loads(row["_millrace_old_values"])["Balance"] for key, row in history.items()}
    assert before == {"Id1": 1500, "Id2": 1500}
    assert {row["_metadata_spanner_server_transaction_id"] for row in history.values()} == {"6329047911"}
    assert {row["_millrace_reconstructed"] for row in history.values()} == {None}
