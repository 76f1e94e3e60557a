"""Mirrors, histories and their views last, and tell upper from lower case, whatever their dataset gives its tables.

The client here does what the REST reference says of a dataset's defaults; the stand-in gives a table its expiry alone.
"""

import re
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.schema.dataset_defaults import dataset_defaults, expiring
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.ports import MAKE_AGAIN, TableTroubleError
from shared.contracts.errors import TransientError
from tests.builders import a_header, table_definition
from tests.unit.cdc_consumer.bigquery_client import FakeBigQuery
from tests.unit.cdc_consumer.decoded import history_of, in_mode, mirror_of

NAMED = table_definition(a_header(key=("name",)))
DAY = 86_400_000
DEFAULTS = {
    "defaultTableExpirationMs": str(60 * DAY),
    "defaultPartitionExpirationMs": str(30 * DAY),
    "defaultCollation": "und:ci",
}


class Giving(FakeBigQuery):
    """A client of a dataset that gives its tables an expiry and a collation."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__(**errors)
        self.defaults = DEFAULTS
        self.unavailable = 0
        """So many changes of a table are answered with 503."""
        self.unavailable_table = ""
        """The table or view of which every change is."""

    def update_table(self, table: bigquery.Table, fields: Sequence[str], **more: Any) -> bigquery.Table:
        if self.unavailable or table.table_id == self.unavailable_table:
            self.unavailable = max(0, self.unavailable - 1)
            raise exceptions.ServiceUnavailable("away")  # type: ignore[no-untyped-call]
        return super().update_table(table, fields, **more)


def ensured(client: Any, *definitions: Any) -> None:
    tables = BigQueryTables(client, "p", "d")
    for definition in definitions:
        tables.ensure(definition)


def test_what_is_made_neither_expires_nor_mixes_keys_that_differ_in_case() -> None:
    client = Giving()
    header, both = a_header(key=("name",)), in_mode("both")
    history = history_of(both, header)
    ensured(client, mirror_of(both, header), history)

    assert len(client.tables) == 3, "a mirror, a history and its view"
    for name in client.tables:
        table = client.called(name)
        assert table.expires is None
        assert table.time_partitioning is None or table.time_partitioning.expiration_ms is None
        assert not any("collation" in field.to_api_repr() for field in table.schema)
    assert client.called(history.name).time_partitioning is not None


def test_what_cannot_be_made_to_last_is_reported_at_its_making_and_in_each_process() -> None:
    forbidden: Any = exceptions.Forbidden  # untyped
    client = Giving(update_table=forbidden("Billing has not been enabled"))
    with capture_logs() as logs:
        ensured(client, NAMED)
        ensured(client, NAMED)

    assert [line["log_level"] for line in logs if line["event"] == "table_expires"] == ["error", "error"]
    assert "bq update --expiration 0 p:d.planes" in str(logs)


@pytest.mark.parametrize("process", ["the same", "another"])
@pytest.mark.parametrize(
    "definition",
    [mirror_of("", a_header(key=("name",))), history_of(in_mode("history"), a_header(key=("name",)))],
    ids=["mirror", "history"],
)
def test_a_table_whose_making_was_cut_off_is_made_to_last_by_the_next_attempt(
    process: str, definition: TableDefinition
) -> None:
    client: Any = Giving()
    tables = BigQueryTables(client, "p", "d")
    client.unavailable = 1
    with pytest.raises(TransientError):
        tables.ensure(definition)
    assert [expiring(client.called(name)) for name in client.tables] != [[]], "it was made, and expires so far"
    tables = tables if process == "the same" else BigQueryTables(client, "p", "d")
    with capture_logs() as logs:
        tables.ensure(definition)

    assert not any(expiring(client.called(name)) for name in client.tables)
    assert "table_expires" not in str(logs)


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_view_that_could_not_be_made_to_last_holds_nothing_up_and_lasts_from_a_later_change_on(process: str) -> None:
    client: Any = Giving()
    history = history_of(in_mode("history"), a_header())
    minutes = count(0, 61)
    tables = BigQueryTables(client, "p", "d", seconds=lambda: next(minutes))
    client.unavailable_table = "planes_history"
    with capture_logs() as logs:
        for _ in range(2):
            tables.ensure(history)
            assert expiring(client.called("planes_history")) == ["expires"]
    assert [line["error"] for line in logs if line["event"] == "table_expires"] == ["away", "away"]
    client.unavailable_table = ""
    tables = tables if process == "the same" else BigQueryTables(client, "p", "d")
    tables.ensure(history)

    assert not any(expiring(client.called(name)) for name in client.tables)


@pytest.mark.parametrize("days", [1, 59, 61])
def test_an_expiry_that_a_person_has_set_stays_and_is_reported(days: int) -> None:
    client = Giving()
    ensured(client, NAMED)
    set_by_hand = str(int(time.time() * 1_000) + days * DAY)
    client.tables["planes"]["expirationTime"] = set_by_hand
    with capture_logs() as logs:
        ensured(client, NAMED)

    assert client.tables["planes"]["expirationTime"] == set_by_hand
    assert [line["event"] for line in logs if line["event"] == "table_expires"] == ["table_expires"]


def test_a_mirror_whose_key_does_not_tell_case_is_refused_with_the_way_out() -> None:
    client = Giving()
    ensured(client, NAMED)
    for field in client.tables["planes"]["schema"]["fields"]:
        if field["name"] == "name":
            field["collation"] = "und:ci"

    with pytest.raises(
        TableTroubleError, match=f"the key name does not tell upper from lower case .*{re.escape(MAKE_AGAIN)}"
    ):
        ensured(client, NAMED)


def test_the_defaults_of_a_dataset_are_named_as_bq_names_them() -> None:
    client = Giving()

    assert dataset_defaults(client.get_dataset("p.d")) == {
        "default_table_expiration": "60 days",
        "default_partition_expiration": "30 days",
        "default_collation": "und:ci",
    }
    assert dataset_defaults(FakeBigQuery().get_dataset("p.d")) == {}
