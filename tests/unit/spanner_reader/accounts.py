"""The worked example of Spanner's documentation: a transfer between two accounts, with the default capture type."""

from typing import Final

from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from shared.contracts.timestamps import parse_timestamp

COMMIT: Final = parse_timestamp("2022-09-27T12:30:00.123456Z")
ACCOUNT_COLUMNS = (
    SpannerColumnType("AccountId", '{"code": "STRING"}', is_primary_key=True, ordinal_position=1),
    SpannerColumnType("LastUpdate", '{"code": "TIMESTAMP"}', is_primary_key=False, ordinal_position=2),
    SpannerColumnType("Balance", '{"code": "INT"}', is_primary_key=False, ordinal_position=3),
)


def transfer(account: str, sequence: str, balance: int, old_balance: int) -> DataChangeRecord:
    """Return one side of the documentation's transfer between two accounts."""
    return DataChangeRecord(
        commit_timestamp=COMMIT,
        record_sequence=sequence,
        server_transaction_id="6329047911",
        is_last_record_in_transaction_in_partition=True,
        table="AccountBalance",
        column_types=ACCOUNT_COLUMNS,
        mods=(
            Mod(
                f'{{"AccountId": "{account}"}}',
                f'{{"LastUpdate": "2022-09-27T12:30:00.123456Z", "Balance": {balance}}}',
                f'{{"LastUpdate": "2022-09-26T11:28:00.189413Z", "Balance": {old_balance}}}',
            ),
        ),
        mod_type="UPDATE",
        value_capture_type="OLD_AND_NEW_VALUES",
        number_of_records_in_transaction=2,
        number_of_partitions_in_transaction=2,
    )
