"""Mirrors, histories and their views last, and tell upper from lower case, whatever their dataset gives its tables.

The client here does what the REST reference says of a dataset's defaults; the stand-in gives a table its expiry alone.
"""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.schema.dataset_defaults import dataset_defaults, expiring
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.core.schema.tables import table_definition
from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.errors import TransientError
from shared.contracts.tables_file import read_tables_file
from tests.builders import a_header

NAMED = table_definition(a_header(key=("name",)))
DAY = 86_400_000
DEFAULTS = {
    "defaultTableExpirationMs": str(60 * DAY),
    "defaultPartitionExpirationMs": str(30 * DAY),
    "defaultCollation": "und:ci",
}
PATCHED = {"expires": "expirationTime", "time_partitioning": "timePartitioning"}


class Giving:
    """A client of a dataset that gives its tables an expiry and a collation."""

    def __init__(self, defaults: Mapping[str, str] = DEFAULTS, *, billing: bool = True) -> None:
        self._defaults = dict(defaults)
        self._billing = billing
        self.away = 0
        """So many changes of a table are answered with 503."""
        self.away_for = ""
        """The table or view of which every change is."""
        self.tables: dict[str, dict[str, Any]] = {}

    def get_dataset(self, path: str, **_more: Any) -> bigquery.Dataset:
        project, dataset = path.split(".")
        return bigquery.Dataset.from_api_repr(
            {"datasetReference": {"projectId": project, "datasetId": dataset}, **self._defaults}
        )

    def get_table(self, path: object, **_more: Any) -> bigquery.Table:
        name = str(path).rpartition(".")[2]
        if name not in self.tables:
            raise exceptions.NotFound("no table")  # type: ignore[no-untyped-call]
        return bigquery.Table.from_api_repr(deepcopy(self.tables[name]))

    def create_table(self, table: bigquery.Table, **_more: Any) -> bigquery.Table:
        made = deepcopy(table.to_api_repr())
        made["type"] = "VIEW" if "view" in made else "TABLE"
        collation = made.setdefault("defaultCollation", self._defaults.get("defaultCollation", ""))
        for field in made.get("schema", {}).get("fields", ()):
            if field["type"] == "STRING" and collation:
                field.setdefault("collation", collation)
        by_partition = self._defaults.get("defaultPartitionExpirationMs")
        if "timePartitioning" in made and by_partition:
            made["timePartitioning"].setdefault("expirationMs", by_partition)
        elif after := self._defaults.get("defaultTableExpirationMs"):
            made.setdefault("expirationTime", str(int(time.time() * 1_000) + int(after)))
        made["creationTime"] = str(int(time.time() * 1_000))
        self.tables[table.table_id] = made
        return bigquery.Table.from_api_repr(deepcopy(made))

    def update_table(self, table: bigquery.Table, fields: Sequence[str], **_more: Any) -> bigquery.Table:
        if self.away:
            self.away -= 1
            raise exceptions.ServiceUnavailable("away")  # type: ignore[no-untyped-call]
        if table.table_id == self.away_for:
            raise exceptions.ServiceUnavailable("away")  # type: ignore[no-untyped-call]
        if not self._billing:
            raise exceptions.Forbidden("Billing has not been enabled")  # type: ignore[no-untyped-call]
        patch = deepcopy(table.to_api_repr())
        for name in fields:
            self.tables[table.table_id][PATCHED[name]] = patch[PATCHED[name]]
        return bigquery.Table.from_api_repr(deepcopy(self.tables[table.table_id]))

    def called(self, name: str) -> bigquery.Table:
        return bigquery.Table.from_api_repr(self.tables[name])


def ensured(client: Any, *definitions: Any) -> None:
    tables = BigQueryTables(client, "p", "d")
    for definition in definitions:
        tables.ensure(definition)


def test_what_is_made_neither_expires_nor_mixes_keys_that_differ_in_case() -> None:
    client = Giving()
    both = destinations(a_header(key=("name",)), Plan(read_tables_file('[defaults]\nmode = "both"')))
    assert both is not None
    assert both.history is not None
    assert both.mirror is not None
    ensured(client, both.mirror, both.history)

    assert len(client.tables) == 3, "a mirror, a history and its view"
    for name in client.tables:
        table = client.called(name)
        assert table.expires is None
        assert table.time_partitioning is None or table.time_partitioning.expiration_ms is None
        assert not any("collation" in field.to_api_repr() for field in table.schema)
    assert client.called(both.history.name).time_partitioning is not None


def test_what_cannot_be_made_to_last_is_reported_at_its_making_and_in_each_process() -> None:
    client = Giving(billing=False)
    with capture_logs() as logs:
        ensured(client, NAMED)
        ensured(client, NAMED)

    assert [line["log_level"] for line in logs if line["event"] == "table_expires"] == ["error", "error"]
    assert "bq update --expiration 0 p:d.planes" in str(logs)


@pytest.mark.parametrize("process", ["the same", "another"])
@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_table_whose_making_was_cut_off_is_made_to_last_by_the_next_attempt(process: str, mode: str) -> None:
    client: Any = Giving()
    both = destinations(a_header(key=("name",)), Plan(read_tables_file(f'[defaults]\nmode = "{mode}"')))
    assert both is not None
    definition = both.mirror or both.history
    assert definition is not None
    tables = BigQueryTables(client, "p", "d")
    client.away = 1
    with pytest.raises(TransientError):
        tables.ensure(definition)
    assert [expiring(client.called(name)) for name in client.tables] != [[]], "it was made, and expires so far"
    tables = tables if process == "the same" else BigQueryTables(client, "p", "d")
    with capture_logs() as logs:
        tables.ensure(definition)

    assert not any(expiring(client.called(name)) for name in client.tables)
    assert "table_expires" not in str(logs)


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_view_that_could_not_be_made_to_last_holds_nothing_up_and_lasts_from_the_next_change_on(process: str) -> None:
    client: Any = Giving()
    both = destinations(a_header(), Plan(read_tables_file('[defaults]\nmode = "history"')))
    assert both is not None
    assert both.history is not None
    tables = BigQueryTables(client, "p", "d")
    client.away_for = "planes_history"
    with capture_logs() as logs:
        for _ in range(2):
            tables.ensure(both.history)
            assert expiring(client.called("planes_history")) == ["expires"]
    assert [line["error"] for line in logs if line["event"] == "table_expires"] == ["away", "away"]
    client.away_for = ""
    tables = tables if process == "the same" else BigQueryTables(client, "p", "d")
    tables.ensure(both.history)

    assert not any(expiring(client.called(name)) for name in client.tables)


@pytest.mark.parametrize("days", [1, 59, 61])
def test_an_expiry_that_somebody_has_set_stays_and_is_reported(days: int) -> None:
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

    with pytest.raises(TableTroubleError, match=r"the key name does not tell upper from lower case .* take a snapshot"):
        ensured(client, NAMED)


def test_the_defaults_of_a_dataset_are_named_as_bq_names_them() -> None:
    client = Giving()

    assert dataset_defaults(client.get_dataset("p.d")) == {
        "default_table_expiration": "60 days",
        "default_partition_expiration": "30 days",
        "default_collation": "und:ci",
    }
    assert dataset_defaults(Giving({}).get_dataset("p.d")) == {}
