"""The worked example of Spanner's documentation, a transfer between two accounts, from its records to tables.

Its updates name every column, so nothing is read, though the stream has the default capture type.
"""

import json
from collections.abc import AsyncGenerator, Sequence

from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import decode_messages
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.ports import WatchedTable
from shared.contracts.change_batch import encode_batch
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog
from tests.unit.cdc_consumer.wire import messages_of
from tests.unit.spanner_reader.accounts import ACCOUNTS, COMMIT, transfer
from tests.unit.spanner_reader.completing import Completing

TABLE = ACCOUNTS.name
SECOND = 1_000_000_000


class UnreadRows(FakeRows):
    """Rows that nobody may ask for."""

    def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Refuse."""
        raise AssertionError(f"{keys} are read, and the records name every column")


async def test_the_transfer_of_the_documentation_ends_in_a_mirror_and_in_a_history_with_the_old_balances() -> None:
    topic, catalog = Topic(), FakeCatalog(ACCOUNTS)
    catalog.time = COMMIT + SECOND
    rows = UnreadRows(Versions(SteppingClock()))
    for record in transfer():  # each comes in a partition of its own
        one = Completing(
            rows, catalog, FakePublisher(topic), start=COMMIT, keeps_history=True, **{TABLE: ("AccountId",)}
        )
        await one.complete(record)
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
