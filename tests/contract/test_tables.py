"""What every Tables promises: the fake, and BigQuery's tables (on the stand-in)."""

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.tables import BigQueryTables, check_dataset, open_client
from services.cdc_consumer.core.destinations import Plan, destinations
from services.cdc_consumer.core.tables import TableDefinition, table_definition
from services.cdc_consumer.ports import Tables, TableTroubleError
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.tables_file import read_tables_file
from tests.builders import PLANE_COLUMNS, a_header
from tests.fakes.tables import FakeTables
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

    tables: Tables
    others: Tables
    drop: Callable[[str], None]
    drop_key: Callable[[str], None]
    columns: Callable[[str], Sequence[str]]
    staleness: Callable[[str], timedelta | None]
    gone: Callable[[str], None]
    """See to it that there is no dataset of a name."""


class TablesContract:
    def test_a_table_is_made_as_it_was_asked_for(self, place: Place) -> None:
        assert place.tables.ensure(EVERY_TYPE) == EVERY_TYPE
        assert place.columns("every") == [column.name for column in EVERY_TYPE.columns]
        assert place.others.ensure(EVERY_TYPE) == EVERY_TYPE

    def test_new_columns_are_added_and_older_column_lists_still_fit(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        assert place.tables.ensure(COLOUR).columns == (*PLANES.columns, COLOUR.columns[3])
        assert place.tables.ensure(PLANES).columns == (*PLANES.columns, COLOUR.columns[3])
        assert place.columns("planes") == [*[column.name for column in PLANES.columns], "colour"]

    def test_a_type_that_bigquery_lacks_is_the_one_that_holds_it(self, place: Place) -> None:
        place.tables.ensure(OF_OTHER_TYPES)
        for tables in (place.tables, place.others):
            for _again in range(2):
                seen = tables.ensure(OF_OTHER_TYPES)
                assert seen.primary_key == OF_OTHER_TYPES.primary_key
                assert [(each.name, each.type.bigquery, each.type.wire) for each in seen.columns] == [
                    (each.name, each.type.bigquery, each.type.wire) for each in OF_OTHER_TYPES.columns
                ]

    def test_an_array_is_added_to_a_table_like_any_column(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        assert place.tables.ensure(TAGS) == place.others.ensure(TAGS)
        assert place.columns("planes")[-1] == "tags"

    @pytest.mark.parametrize(("there", "wanted"), [(TAGS, TAG), (TAG, TAGS)])
    def test_an_array_and_a_single_value_are_a_schema_conflict(
        self, place: Place, there: TableDefinition, wanted: TableDefinition
    ) -> None:
        place.tables.ensure(there)
        for tables in (place.tables, place.others):
            with pytest.raises(PoisonRecordError) as raised:
                tables.ensure(wanted)
            assert raised.value.reason is Reason.SCHEMA_CONFLICT

    def test_what_another_process_has_added_is_kept(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.others.ensure(COLOUR)
        place.tables.ensure(RANGE)
        place.others.ensure(RANGE)

        assert place.columns("planes")[-2:] == ["colour", "range"]

    def test_a_column_of_another_type_is_a_schema_conflict(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        other = table_definition(a_header(columns=(("id", "INT64"), ("name", "STRING"), ("seats", "STRING"))))
        for tables in (place.tables, place.others):
            with pytest.raises(PoisonRecordError) as raised:
                tables.ensure(other)
            assert raised.value.reason is Reason.SCHEMA_CONFLICT
        assert place.tables.ensure(PLANES).columns == PLANES.columns

    def test_a_conflict_in_one_column_adds_no_other(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        columns = (("id", "INT64"), ("name", "STRING"), ("seats", "STRING"), ("colour", "STRING"))
        with pytest.raises(PoisonRecordError):
            place.others.ensure(table_definition(a_header(columns=columns)))

        assert "colour" not in place.columns("planes")

    def test_columns_that_come_to_more_than_bigquery_takes_are_refused_and_none_is_added(self, place: Place) -> None:
        """A table keeps the columns that its source has dropped: it is together with them that there are too many."""

        def with_columns(kind: str, count: int) -> TableDefinition:
            more = tuple((f"{kind}_{number}", "INT64") for number in range(count))
            return table_definition(a_header(columns=(*PLANE_COLUMNS, *more)))

        place.tables.ensure(with_columns("old", 1500))
        for tables in (place.tables, place.others):
            with pytest.raises(PoisonRecordError) as raised:
                tables.ensure(with_columns("new", 600))
            assert raised.value.reason is Reason.TOO_MANY_COLUMNS
        assert len(place.columns("planes")) == 1500 + len(PLANES.columns)
        place.others.ensure(with_columns("old", 1500))

    def test_another_primary_key_is_a_schema_conflict(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        for key in (("name",), ("id", "name")):
            with pytest.raises(PoisonRecordError) as raised:
                place.tables.ensure(table_definition(a_header(key=key)))
            assert raised.value.reason is Reason.SCHEMA_CONFLICT

    @pytest.mark.parametrize(
        ("source", "table"),
        [
            ("//spanner.googleapis.com/projects/p/instances/i/databases/other/changeStreams/s", "air.planes"),
            ("//spanner.googleapis.com/projects/p/instances/i/databases/d/changeStreams/s", "air_planes"),
        ],
    )
    def test_two_source_tables_are_never_mixed_in_one(self, place: Place, source: str, table: str) -> None:
        ours = a_header("air.planes")
        place.tables.ensure(table_definition(ours))
        others = table_definition(structs.replace(ours, source=source, table=table))
        for tables in (place.tables, place.others):
            with pytest.raises(TableTroubleError, match="holds another source table"):
                tables.ensure(others)

        another_stream = "//spanner.googleapis.com/projects/p/instances/i/databases/d/changeStreams/another"
        place.others.ensure(table_definition(structs.replace(ours, source=another_stream)))

    def test_a_table_without_a_key_is_in_trouble_until_it_has_one(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.drop_key("planes")
        with pytest.raises(TableTroubleError, match="no primary key"):
            place.others.ensure(PLANES)

    def test_names_are_the_same_in_upper_and_lower_case(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        upper = table_definition(
            a_header(columns=(("ID", "INT64"), ("NAME", "STRING"), ("Seats", "INT64")), key=["ID"])
        )
        place.others.ensure(upper)

        assert place.columns("planes") == [column.name for column in PLANES.columns]

    def test_a_table_that_was_dropped_is_made_again_once_forgotten(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.drop("planes")
        place.tables.forget("planes")
        place.tables.ensure(PLANES)

        assert place.columns("planes")

    def test_a_history_stands_beside_its_mirror_and_is_widened_by_itself(self, place: Place) -> None:
        wider = history_of(a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING"))))
        place.tables.ensure(PLANES)
        assert place.tables.ensure(HISTORY) == place.others.ensure(HISTORY) == HISTORY
        assert place.others.ensure(wider).columns[-1].name == "colour"
        assert place.tables.ensure(HISTORY).name == "planes_changelog"
        assert "colour" not in place.columns("planes")

    def test_a_history_of_rows_told_apart_by_other_columns_is_a_schema_conflict(self, place: Place) -> None:
        place.tables.ensure(HISTORY)
        for tables in (place.tables, place.others):
            with pytest.raises(PoisonRecordError) as raised:
                tables.ensure(history_of(a_header(key=("name",))))
            assert raised.value.reason is Reason.SCHEMA_CONFLICT

    def test_a_mirror_and_a_history_of_one_name_are_never_mixed(self, place: Place) -> None:
        place.tables.ensure(HISTORY)
        with pytest.raises(TableTroubleError):
            place.others.ensure(table_definition(a_header("planes_changelog")))
        place.tables.ensure(table_definition(a_header("airports_changelog")))
        with pytest.raises(TableTroubleError):
            place.others.ensure(history_of(a_header("airports")))

    def test_staleness_is_what_was_asked_for_last_and_left_alone_where_nothing_is(self, place: Place) -> None:
        place.tables.ensure(replace(PLANES, max_staleness=timedelta(minutes=15)))
        assert place.staleness("planes") == timedelta(minutes=15)
        place.others.ensure(PLANES)
        assert place.staleness("planes") == timedelta(minutes=15)
        place.others.forget("planes")
        place.others.ensure(replace(PLANES, max_staleness=timedelta(hours=26, seconds=5)))
        assert place.staleness("planes") == timedelta(hours=26, seconds=5)

    def test_a_dataset_that_the_file_names_and_nobody_has_made_is_those_tables_trouble(self, place: Place) -> None:
        place.gone("nowhere")
        with pytest.raises(TableTroubleError):
            place.tables.ensure(replace(PLANES, dataset="nowhere"))
        assert place.tables.ensure(PLANES) == PLANES

    def test_a_table_nobody_knows_can_be_forgotten(self, place: Place) -> None:
        place.tables.forget("nothing")


class TestFakeTables(TablesContract):
    @pytest.fixture
    def place(self) -> Place:
        one, two = FakeTables(), FakeTables()
        two.there = one.there

        def drop(name: str) -> None:
            del one.there[name]

        def drop_key(name: str) -> None:
            one.there[name] = replace(one.there[name], primary_key=())

        return Place(
            one,
            two,
            drop,
            drop_key,
            lambda name: [column.name for column in one.there[name].columns],
            lambda name: one.there[name].max_staleness,
            lambda dataset: one.forbidden.add(f"{dataset}.planes"),
        )


@pytest.fixture
def stand_in(bigquery_stand_in: tuple[str, str]) -> StandIn:
    return StandIn(bigquery_stand_in)


@pytest.fixture
def rest(bigquery_stand_in: tuple[str, str]) -> str:
    return bigquery_stand_in[0]


class TestBigQueryTables(TablesContract):
    @pytest.fixture
    def place(self, stand_in: StandIn, rest: str) -> Place:
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
        return Place(one, two, drop, drop_key, columns, staleness, lambda _dataset: None)

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

    def test_a_history_is_partitioned_by_commit_and_has_no_key(self, place: Place, stand_in: StandIn) -> None:
        place.tables.ensure(HISTORY)
        resource = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.planes_changelog").to_api_repr()

        assert resource["timePartitioning"] == {"type": "DAY", "field": "_metadata_spanner_commit_timestamp"}
        assert resource["clustering"] == {"fields": ["id"]}
        assert "tableConstraints" not in resource

    def test_a_changelog_of_somebody_elses_is_left_to_them(self, place: Place, stand_in: StandIn) -> None:
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

    def test_a_view_that_is_gone_or_older_than_its_table_is_brought_up_to_date(
        self, place: Place, stand_in: StandIn
    ) -> None:
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
    def test_a_view_that_is_refused_holds_nothing_up(
        self, place: Place, stand_in: StandIn, method: str, status: str
    ) -> None:
        name = f"{PROJECT}.{stand_in.dataset}.planes_history"
        fault = {"action": "answer", "on": "rest", "method": method, "table": name, "status": status, "times": 1}
        stand_in.control("POST", "faults", **fault)
        with capture_logs() as logs:
            assert place.tables.ensure(HISTORY) == HISTORY

        assert [line["log_level"] for line in logs if line["event"] == "history_view_not_made"] == ["error"]

    def test_a_table_made_by_hand_is_told_the_key_it_lacks_and_is_then_claimed(
        self, place: Place, stand_in: StandIn
    ) -> None:
        columns = ", ".join(f"{column.name} {column.type.bigquery}" for column in PLANES.columns)
        stand_in.run(f"CREATE TABLE planes ({columns})")
        with pytest.raises(TableTroubleError) as raised:
            place.tables.ensure(PLANES)
        stand_in.run(str(raised.value).partition("give it one: ")[2])

        assert place.tables.ensure(PLANES) == PLANES
        other = table_definition(structs.replace(a_header(), source="spanner:another"))
        with pytest.raises(TableTroubleError, match="holds another source table"):
            place.others.ensure(other)

    def test_a_table_that_was_dropped_and_made_again_says_so_to_whoever_comes_later(
        self, place: Place, stand_in: StandIn
    ) -> None:
        def labels() -> Any:
            return stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.planes").labels

        place.tables.ensure(PLANES)
        assert "millrace_needs_resync" not in labels()
        place.drop("planes")
        place.tables.forget("planes")
        place.tables.ensure(PLANES)
        assert labels()["millrace_needs_resync"] == "table_made_anew"

        place.others.ensure(COLOUR)
        assert labels()["millrace_needs_resync"] == "table_made_anew"
        assert "millrace_mirror_of" in labels()

    def test_a_table_that_was_dropped_and_made_again_is_told_loudly(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.drop("planes")
        place.tables.forget("planes")
        with capture_logs() as logs:
            place.tables.ensure(PLANES)
            place.tables.forget("planes")
            place.tables.ensure(PLANES)

        assert [(line["log_level"], line["table"]) for line in logs if line["event"] == "table_made_anew"] == [
            ("error", "planes")
        ]

    def test_a_dataset_that_is_not_there_names_the_command(self, rest: str) -> None:
        client, dataset = open_client(PROJECT, rest), f"none_{uuid.uuid4().hex[:8]}"
        with pytest.raises(MisconfiguredError, match=f"mk --dataset {dataset}"):
            BigQueryTables(client, PROJECT, dataset).ensure(PLANES)
        with pytest.raises(MisconfiguredError, match=f"mk --dataset {dataset}"):
            check_dataset(client, PROJECT, dataset)

    def test_a_service_that_is_away_is_transient(self) -> None:
        with pytest.raises(TransientError):
            BigQueryTables(open_client(PROJECT, "127.0.0.1:1"), PROJECT, "d").ensure(PLANES)

    def test_somebody_altering_the_table_at_the_same_moment_is_looked_at_again(
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
