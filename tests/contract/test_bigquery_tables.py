"""What BigQuery's tables do beside what every Tables promises: how they are made, claimed and told, on the stand-in."""

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.mirror_labels import COMPLETE_SINCE, COMPLETE_TOLD, READ_SINCE
from services.cdc_consumer.adapters.schema.tables import BigQueryTables, check_dataset
from services.cdc_consumer.adapters.status.mirrors import read_mirrors
from services.cdc_consumer.ports import DatasetRefusedError, TableTroubleError
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_header, table_definition
from tests.contract.table_places import COLOUR, EVERY_TYPE, HISTORY, PLANES, RANGE, Place, history_of, on_bigquery
from tests.integration.stand_in import PROJECT, StandIn

OF_ANOTHER_SOURCE = table_definition(structs.replace(a_header(), source="spanner:another"))


class TestBigQueryTables:
    @pytest.fixture
    def place(self, stand_in: StandIn, rest: str) -> Place:
        return on_bigquery(stand_in, rest)

    def test_it_has_its_key_its_clustering_and_no_staleness(self, place: Place, stand_in: StandIn) -> None:
        place.tables.ensure(EVERY_TYPE)
        table = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.every")

        resource = table.to_api_repr()
        assert resource["tableConstraints"] == {"primaryKey": {"columns": list(EVERY_TYPE.primary_key)}}
        assert table.clustering_fields == list(EVERY_TYPE.primary_key[:4])
        assert not resource.get("maxStaleness")
        kinds = {column.name: column.type for column in EVERY_TYPE.columns}
        assert {field.name: field.mode for field in table.schema} == {
            name: "NULLABLE" if kind.element is None else "REPEATED" for name, kind in kinds.items()
        }

    def test_its_label_has_since_when_it_is_complete_beside_any_others(self, place: Place, stand_in: StandIn) -> None:
        def labels() -> dict[str, str]:
            found: dict[str, str] = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.planes").labels
            if announced_at := found.pop(COMPLETE_TOLD, ""):
                assert 0 <= time.time() - int(announced_at) / 1e6 < 3_600
            return found

        place.tables.ensure(PLANES)
        before = labels()
        later = 4_000_000_000_000_000
        place.tables.complete(PLANES, 1_000_000, 1_000_000)
        assert labels() == before, "from before it was made"
        place.tables.complete(PLANES, later, later)
        place.others.complete(PLANES, later - 1, later - 1)
        assert labels() == before | {COMPLETE_SINCE: str(later)}
        place.others.complete(PLANES, later + 1, later + 1)
        assert labels() == before | {COMPLETE_SINCE: str(later + 1)}
        place.tables.complete(PLANES, later + 2, 1_000_000)
        assert labels() == before | {COMPLETE_SINCE: str(later + 1)}, "read before it was made, whatever its number is"
        place.tables.complete(PLANES, later + 2, later - 5)
        assert labels() == before | {COMPLETE_SINCE: str(later + 2), READ_SINCE: str(later - 5)}
        (mirror,) = read_mirrors(stand_in.client, PROJECT, [stand_in.dataset])
        assert (mirror.complete_since, mirror.deleted_before, mirror.delete_before) == (later + 2, 0, later + 2)

        with pytest.raises(TableTroubleError):
            place.tables.complete(table_definition(a_header("gone")), later, later)

    def test_a_history_is_partitioned_by_commit_and_has_no_key(self, place: Place, stand_in: StandIn) -> None:
        place.tables.ensure(HISTORY)
        resource = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.planes_changelog").to_api_repr()

        assert resource["timePartitioning"] == {"type": "DAY", "field": "_metadata_spanner_commit_timestamp"}
        assert resource["clustering"] == {"fields": ["id"]}
        assert "tableConstraints" not in resource

    def test_a_changelog_of_another_owner_is_left_to_it(self, place: Place, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE planes_changelog (id INT64, _metadata_spanner_mod_type STRING)")
        with pytest.raises(TableTroubleError, match="a name or a dataset of its own"):
            place.tables.ensure(HISTORY)
        assert place.columns("planes_changelog") == ["id", "_metadata_spanner_mod_type"]

    def test_a_history_that_has_lost_its_labels_is_claimed_again(self, place: Place, stand_in: StandIn) -> None:
        place.tables.ensure(HISTORY)
        table = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.planes_changelog")
        labels, table.labels = table.labels, dict.fromkeys(table.labels)
        assert stand_in.client.update_table(table, ["labels"]).labels == {}
        place.others.ensure(HISTORY)

        assert stand_in.client.get_table(table.reference).labels == labels

    def test_a_view_that_is_gone_or_older_than_its_table_is_updated(self, place: Place, stand_in: StandIn) -> None:
        place.tables.ensure(HISTORY)
        columns = place.columns("planes_history")
        place.drop("planes_history")
        place.others.ensure(HISTORY)
        assert place.columns("planes_history") == columns

        stand_in.run("ALTER TABLE planes_changelog ADD COLUMN colour STRING")
        place.others.forget("planes_changelog")
        place.others.ensure(HISTORY)
        assert set(place.columns("planes_history")) == {*columns, "colour"}

    @pytest.mark.parametrize(
        ("method", "status"),
        [
            ("POST", "PERMISSION_DENIED"),
            ("POST", "INVALID_ARGUMENT"),
            ("POST", "NOT_FOUND"),
            ("POST", "UNAVAILABLE"),
            ("GET", "PERMISSION_DENIED"),
            ("GET", "UNAVAILABLE"),
        ],
    )
    def test_a_refused_view_holds_nothing_up(self, place: Place, stand_in: StandIn, method: str, status: str) -> None:
        name = f"{PROJECT}.{stand_in.dataset}.planes_history"
        fault = {"action": "answer", "on": "rest", "method": method, "table": name, "status": status, "times": 1}
        stand_in.control("POST", "faults", **fault)
        with capture_logs() as logs:
            assert place.tables.ensure(HISTORY) == HISTORY

        assert [line["log_level"] for line in logs if line["event"] == "history_view_not_made"] == ["error"]

    def test_a_table_made_by_hand_is_claimed_once_it_has_its_key(self, place: Place, stand_in: StandIn) -> None:
        columns = ", ".join(f"{column.name} {column.type.bigquery}" for column in PLANES.columns)
        stand_in.run(f"CREATE TABLE planes ({columns})")
        with pytest.raises(TableTroubleError) as raised:
            place.tables.ensure(PLANES)
        stand_in.run(str(raised.value).partition("give it one: ")[2])

        assert place.tables.ensure(PLANES) == PLANES
        with pytest.raises(TableTroubleError, match="holds another source table"):
            place.others.ensure(OF_ANOTHER_SOURCE)

    def test_a_table_that_was_dropped_and_made_again_is_logged_once_and_labelled(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        assert place.pending_resync("planes") == ""
        place.drop("planes")
        place.tables.forget("planes")
        with capture_logs() as logs:
            place.tables.ensure(PLANES)
            place.tables.forget("planes")
            place.tables.ensure(PLANES)

        logged = [(line["log_level"], line["table"]) for line in logs if line["event"] == "table_recreated"]
        assert logged == [("error", "planes")]
        assert place.pending_resync("planes") == "table_made_anew"
        place.others.ensure(COLOUR)
        assert place.pending_resync("planes") == "table_made_anew"
        with pytest.raises(TableTroubleError, match="holds another source table"):
            place.others.ensure(OF_ANOTHER_SOURCE)

    @pytest.mark.parametrize("whole_dataset", [False, True])
    def test_for_a_refused_table_its_dataset_is_read(
        self, place: Place, stand_in: StandIn, whole_dataset: bool
    ) -> None:
        place.tables.ensure(PLANES)
        place.tables.forget(PLANES.identity)
        table = "" if whole_dataset else f"{PROJECT}.{stand_in.dataset}.planes"
        fault = {"action": "answer", "on": "rest", "method": "GET", "table": table, "status": "PERMISSION_DENIED"}
        stand_in.control("POST", "faults", **fault, times=2 if whole_dataset else 1)
        with pytest.raises(TransientError) as raised:
            place.tables.ensure(PLANES)

        assert type(raised.value) is (DatasetRefusedError if whole_dataset else TableTroubleError)
        assert ("give this identity the role roles/bigquery.dataEditor on it" in str(raised.value)) is whole_dataset
        assert place.tables.ensure(PLANES) == PLANES, "as soon as it is refused no more"

    @pytest.mark.parametrize("wrongly_set", ["one", "all"])
    def test_a_dataset_is_refused_with_all_of_its_tables(
        self, place: Place, stand_in: StandIn, wrongly_set: str
    ) -> None:
        names = ["planes", "airports", "pilots"]
        for name in names:
            place.tables.ensure(table_definition(a_header(name)))
        for name in names if wrongly_set == "all" else names[:1]:
            table = f"{PROJECT}.{stand_in.dataset}.{name}"
            stand_in.control("POST", "faults", action="answer", on="rights", table=table)
        for tables in (place.tables, place.others):
            if wrongly_set == "all":
                with pytest.raises(DatasetRefusedError, match="dataEditor on the dataset; until then"):
                    tables.check_rights(PLANES)
            else:
                tables.check_rights(PLANES)

    def test_a_dataset_that_is_not_there_names_the_command(self, rest: str) -> None:
        client, dataset = open_client(PROJECT, rest), f"none_{uuid.uuid4().hex[:8]}"
        with pytest.raises(MisconfiguredError, match=f"mk --dataset {dataset}"):
            BigQueryTables(client, PROJECT, dataset).ensure(PLANES)
        with pytest.raises(MisconfiguredError, match=f"mk --dataset {dataset}"):
            check_dataset(client, PROJECT, dataset)

    def test_a_service_that_is_unavailable_is_transient(self) -> None:
        with pytest.raises(TransientError):
            BigQueryTables(open_client(PROJECT, "127.0.0.1:1"), PROJECT, "d").ensure(PLANES)

    def test_a_silent_table_or_view_holds_up_no_other_one(
        self, stand_in: StandIn, rest: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("services.cdc_consumer.adapters.bigquery.unanswered.ANSWERS_WITHIN", timedelta(seconds=0.5))
        place = on_bigquery(stand_in, rest)
        airports = table_definition(a_header("airports"))
        silent = {"planes": PLANES, "planes_history": HISTORY}
        for name in silent:
            table = f"{PROJECT}.{stand_in.dataset}.{name}"
            stand_in.control("POST", "faults", action="stall", on="rest", method="GET", table=table)
        with place.tables.asked_ahead([*silent.values(), airports]):
            for name, definition in silent.items():
                with pytest.raises(TransientError, match=f"{name}: BigQuery gives no answer"):
                    place.tables.ensure(definition)
        retrying(Stop())(place.tables.ensure, airports)
        stand_in.control("DELETE", "faults")
        for definition in (PLANES, HISTORY):
            assert retrying(Stop())(place.tables.ensure, definition) == definition

    def test_a_table_altered_by_another_meanwhile_is_read_again(
        self, place: Place, stand_in: StandIn, rest: str
    ) -> None:
        place.tables.ensure(PLANES)

        client = open_client(PROJECT, rest)
        update = client.update_table

        def overtaken(*arguments: Any, **more: Any) -> Any:
            place.others.ensure(COLOUR)  # between our reading of the table and our altering it
            return update(*arguments, **more)

        client.update_table = overtaken  # type: ignore[method-assign]
        BigQueryTables(client, PROJECT, stand_in.dataset).ensure(RANGE)

        assert place.columns("planes")[-2:] == ["colour", "range"]

    @pytest.mark.parametrize("there_before", [False, True])
    @pytest.mark.parametrize("own", [(), (("size", "STRING"),)])
    @pytest.mark.parametrize("overtaken_at", range(5))
    def test_whenever_another_process_widens_a_history_its_view_ends_with_the_columns_of_both(
        self,
        place: Place,
        stand_in: StandIn,
        rest: str,
        overtaken_at: int,
        own: Sequence[tuple[str, str]],
        there_before: bool,
    ) -> None:
        colour = history_of(a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING"))))
        if there_before:
            place.tables.ensure(HISTORY)
        client, calls = open_client(PROJECT, rest), itertools.count()

        def overtaken(call: Callable[..., Any]) -> Callable[..., Any]:
            def calling(*arguments: Any, **more: Any) -> Any:
                if next(calls) == overtaken_at:
                    place.others.ensure(colour)
                return call(*arguments, **more)

            return calling

        client.get_table = overtaken(client.get_table)  # type: ignore[method-assign]
        client.create_table = overtaken(client.create_table)  # type: ignore[method-assign]
        client.update_table = overtaken(client.update_table)  # type: ignore[method-assign]
        BigQueryTables(client, PROJECT, stand_in.dataset).ensure(history_of(a_header(columns=(*PLANE_COLUMNS, *own))))
        if next(calls) <= overtaken_at:
            place.others.ensure(colour)

        both = {"colour", *(name for name, _type in own)}
        assert both <= set(place.columns("planes_changelog"))
        assert both <= set(place.columns("planes_history"))
