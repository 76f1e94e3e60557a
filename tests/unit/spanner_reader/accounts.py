"""The worked example of Spanner's documentation: a transfer between two accounts, with the default capture type."""

from typing import Final

from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from services.spanner_reader.ports import WatchedTable
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

COMMIT: Final = parse_timestamp("2022-09-27T12:30:00.123456Z")
ACCOUNT_COLUMNS = (
    SpannerColumnType("AccountId", '{"code": "STRING"}', is_primary_key=True, ordinal_position=1),
    SpannerColumnType("LastUpdate", '{"code": "TIMESTAMP"}', is_primary_key=False, ordinal_position=2),
    SpannerColumnType("Balance", '{"code": "INT"}', is_primary_key=False, ordinal_position=3),
)
ACCOUNTS: Final = WatchedTable("AccountBalance", ("AccountId",), ACCOUNT_COLUMNS, "OLD_AND_NEW_VALUES")
OLD_UPDATES: Final = ("2022-09-26T11:28:00.189413Z", "2022-01-20T11:25:00.199915Z")
"""When the accounts had changed before."""


def transfer(commit: Nanoseconds = COMMIT) -> tuple[DataChangeRecord, DataChangeRecord]:
    """Return both records of the documentation's transfer between two accounts."""
    one, two = OLD_UPDATES
    return _side("Id1", "00000000", 1000, one, commit), _side("Id2", "00000001", 2000, two, commit)


def _side(account: str, sequence: str, balance: int, old_update: str, commit: Nanoseconds) -> DataChangeRecord:
    return DataChangeRecord(
        commit_timestamp=commit,
        record_sequence=sequence,
        server_transaction_id="6329047911",
        is_last_record_in_transaction_in_partition=True,
        table=ACCOUNTS.name,
        column_types=ACCOUNT_COLUMNS,
        mods=(
            Mod(
                f'{{"AccountId": "{account}"}}',
                f'{{"LastUpdate": "{format_timestamp(commit)}", "Balance": {balance}}}',
                f'{{"LastUpdate": "{old_update}", "Balance": 1500}}',
            ),
        ),
        mod_type="UPDATE",
        value_capture_type="OLD_AND_NEW_VALUES",
        number_of_records_in_transaction=2,
        number_of_partitions_in_transaction=2,
    )
