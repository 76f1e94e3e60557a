"""Table definitions, and the places where tests make tables of them, in memory or on the BigQuery stand-in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from services.cdc_consumer.adapters.bigquery.mirror_labels import DEAD_LETTERS, NEEDS_RESYNC, label_time
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.ports import DestinationTables
from shared.bigquery.client import open_client
from shared.contracts.change_batch import Header
from shared.contracts.tables_file import read_tables_file
from tests.builders import PLANE_COLUMNS, a_header, table_definition
from tests.integration.stand_in import PROJECT, StandIn


def history_of(header: Header) -> TableDefinition:
    """Return the table with every change of a source table."""
    found = destinations(header, Plan(read_tables_file('[defaults]\nmode = "history"')))
    assert found is not None
    assert found.history is not None
    return found.history


PLANES = table_definition(a_header())
COLOUR = table_definition(a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING"))))
RANGE = table_definition(a_header(columns=(*PLANE_COLUMNS, ("range", "FLOAT64"))))
EVERY_TYPE = table_definition(
    a_header(
        "every",
        columns=[
            *[(f"{kind.lower()}_key", kind) for kind in ("BOOL", "INT64", "NUMERIC", "STRING", "DATE", "TIMESTAMP")],
            *[(kind.lower(), kind) for kind in ("FLOAT64", "BYTES", "JSON", "NUMERIC", "BOOL")],
            *[
                (f"{kind.lower()}s", f"ARRAY<{kind}>")
                for kind in ("INT64", "FLOAT64", "NUMERIC", "BOOL", "BYTES", "DATE")
            ],
            *[(f"{kind.lower()}s", f"ARRAY<{kind}>") for kind in ("STRING", "TIMESTAMP", "JSON")],
        ],
        key=["bool_key", "int64_key", "numeric_key", "string_key", "date_key", "timestamp_key"],
    )
)
OF_OTHER_TYPES = table_definition(
    a_header(
        "others",
        columns=[
            *[(f"{kind.lower()}_key", kind) for kind in ("BYTES", "FLOAT64", "FLOAT32")],
            *[(kind.lower(), kind) for kind in ("FLOAT32", "PG_NUMERIC", "UUID")],
            *[(f"{kind.lower()}s", f"ARRAY<{kind}>") for kind in ("FLOAT32", "PG_NUMERIC")],
        ],
        key=["bytes_key", "float64_key", "float32_key"],
    )
)
"""Types that BigQuery lacks, or lacks in a key: their columns are of another."""
HISTORY = history_of(a_header())
TAGS = table_definition(a_header(columns=(*PLANE_COLUMNS, ("tags", "ARRAY<STRING>"))))
TAG = table_definition(a_header(columns=(*PLANE_COLUMNS, ("tags", "STRING"))))


@dataclass
class Place:
    """A Tables, another one for the same dataset (another process), and a way to do what a stranger could do."""

    tables: DestinationTables
    others: DestinationTables
    drop: Callable[[str], None]
    drop_key: Callable[[str], None]
    columns: Callable[[str], Sequence[str]]
    staleness: Callable[[str], timedelta | None]
    gone: Callable[[str], None]
    """See to it that there is no dataset of a name."""
    dead_letters: Callable[[str], int]
    """Until when a table says that changes have become dead letters."""
    pending_resync: Callable[[str], str]
    """Why a table says that it is pending resync."""
    keep: Callable[[str], timedelta | None]
    """How long a history keeps its changes."""


def on_bigquery(stand_in: StandIn, rest: str) -> Place:
    def columns(name: str) -> Sequence[str]:
        return [field.name for field in stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.{name}").schema]

    def drop(name: str) -> None:
        stand_in.client.delete_table(f"{PROJECT}.{stand_in.dataset}.{name}")

    def drop_key(name: str) -> None:
        stand_in.run(f"ALTER TABLE {name} DROP PRIMARY KEY")

    def staleness(name: str) -> timedelta | None:
        text = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.{name}").max_staleness
        hours, minutes, seconds = (int(part) for part in str(text).removeprefix("0-0 0 ").split(":"))
        return timedelta(hours=hours, minutes=minutes, seconds=seconds)

    one, two = (BigQueryTables(open_client(PROJECT, rest), PROJECT, stand_in.dataset) for _ in range(2))

    def dead_letters(name: str) -> int:
        return label_time(stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.{name}").labels, DEAD_LETTERS)

    def pending_resync(name: str) -> str:
        labels = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.{name}").labels
        return str(labels.get(NEEDS_RESYNC, ""))

    def keep(name: str) -> timedelta | None:
        partitioning = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.{name}").time_partitioning
        return None if partitioning.expiration_ms is None else timedelta(milliseconds=partitioning.expiration_ms)

    return Place(
        one, two, drop, drop_key, columns, staleness, lambda _dataset: None, dead_letters, pending_resync, keep
    )
