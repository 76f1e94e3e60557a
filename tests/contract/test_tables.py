"""What every Tables promises: the fake, and BigQuery's tables (on the stand-in)."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.core.schema.tables import TableDefinition, beside
from services.cdc_consumer.core.types.masks import MaskKey
from services.cdc_consumer.ports import LEFT_OUT, MASKS_CHANGED, ROWS_TOO_OLD, DestinationTables, TableTroubleError
from shared.contracts.change_batch import Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.tables_file import read_tables_file
from tests.builders import PLANE_COLUMNS, a_header, table_definition
from tests.contract.table_places import (
    COLOUR,
    EVERY_TYPE,
    HISTORY,
    OF_OTHER_TYPES,
    PLANES,
    RANGE,
    TAG,
    TAGS,
    Place,
    history_of,
    on_bigquery,
)
from tests.fakes.tables import FakeTables
from tests.integration.stand_in import StandIn


def reason_of(tables: DestinationTables, definition: TableDefinition) -> Reason:
    """Return the reason for which a table cannot be as it is asked for."""
    with pytest.raises(PoisonRecordError) as raised:
        tables.ensure(definition)
    return raised.value.reason


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

    @pytest.mark.parametrize(
        ("there", "wanted", "name"), [(TAGS, TAG, "tags_STRING"), (TAG, TAGS, "tags_ARRAY_STRING")]
    )
    def test_an_array_and_a_single_value_stand_beside_each_other(
        self, place: Place, there: TableDefinition, wanted: TableDefinition, name: str
    ) -> None:
        place.tables.ensure(there)
        for tables in (place.tables, place.others):
            assert beside(wanted, tables.ensure(wanted)) == {"tags": name}
        assert place.columns("planes") == [*[column.name for column in there.columns], name]
        assert beside(there, place.others.ensure(there)) == {}

    def test_tables_that_are_asked_for_together_are_made_and_found_as_any_other(self, place: Place) -> None:
        for tables in (place.tables, place.others, place.tables):
            with tables.asked_ahead([PLANES, HISTORY]):
                assert (tables.ensure(HISTORY), tables.ensure(PLANES)) == (HISTORY, PLANES)
        place.tables.forget("planes")
        with place.tables.asked_ahead([PLANES]):
            place.others.ensure(COLOUR)
            place.tables.ensure(RANGE)
        assert place.columns("planes")[-2:] == ["colour", "range"]

    def test_what_another_process_has_added_is_kept(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        place.others.ensure(COLOUR)
        place.tables.ensure(RANGE)
        place.others.ensure(RANGE)

        assert place.columns("planes")[-2:] == ["colour", "range"]

    def test_a_column_of_another_type_stands_beside_the_old_one_in_mirrors_and_histories(self, place: Place) -> None:
        retyped = a_header(columns=(("id", "INT64"), ("name", "STRING"), ("seats", "STRING")))
        for before, now in ((PLANES, table_definition(retyped)), (HISTORY, history_of(retyped))):
            place.tables.ensure(before)
            for tables in (place.tables, place.others, place.tables):
                there = tables.ensure(now)
                assert beside(now, there) == {"seats": "seats_STRING"}
                kinds = {column.name: column.type.bigquery for column in there.columns}
                assert (kinds["seats"], kinds["seats_STRING"]) == ("INT64", "STRING")
                assert beside(before, tables.ensure(before)) == {}
            assert place.columns(now.name) == [*[column.name for column in before.columns], "seats_STRING"]

    @pytest.mark.parametrize(
        ("there", "wanted"),
        [
            ({"id": "INT64"}, {"id": "STRING"}),
            ({"id": "INT64", "Seats": "INT64"}, {"id": "INT64", "seats": "STRING", "SEATS_string": "STRING"}),
            ({"id": "INT64", "seats": "INT64", "seats_STRING": "BYTES"}, {"id": "INT64", "seats": "STRING"}),
            ({"id": "INT64", "s" * 296: "INT64"}, {"id": "INT64", "s" * 296: "JSON"}),
        ],
    )
    def test_a_column_of_another_type_that_can_have_none_beside_it_is_a_schema_conflict_and_adds_no_other(
        self, place: Place, there: Mapping[str, str], wanted: Mapping[str, str]
    ) -> None:
        place.tables.ensure(table_definition(a_header(columns=[*there.items()])))
        for tables in (place.tables, place.others):
            widened = table_definition(a_header(columns=[*wanted.items(), ("colour", "STRING")]))
            assert reason_of(tables, widened) is Reason.SCHEMA_CONFLICT
        assert "colour" not in place.columns("planes")

    def test_columns_that_come_to_more_than_bigquery_takes_are_refused_and_none_is_added(self, place: Place) -> None:
        """A table keeps the columns that its source has dropped: it is together with them that there are too many."""

        def with_columns(kind: str, count: int) -> TableDefinition:
            more = tuple((f"{kind}_{number}", "INT64") for number in range(count))
            return table_definition(a_header(columns=(*PLANE_COLUMNS, *more)))

        place.tables.ensure(with_columns("old", 1500))
        for tables in (place.tables, place.others):
            assert reason_of(tables, with_columns("new", 600)) is Reason.TOO_MANY_COLUMNS
        assert len(place.columns("planes")) == 1500 + len(PLANES.columns)
        place.others.ensure(with_columns("old", 1500))

    def test_another_primary_key_is_a_schema_conflict(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        for key in (("name",), ("id", "name")):
            assert reason_of(place.tables, table_definition(a_header(key=key))) is Reason.SCHEMA_CONFLICT

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
            assert reason_of(tables, history_of(a_header(key=("name",)))) is Reason.SCHEMA_CONFLICT

    def test_the_columns_of_a_key_may_come_in_another_order(self, place: Place) -> None:
        """As in the last changes of a table that has been dropped: the order of its key is known no more."""
        both = [a_header(key=key) for key in (["name", "id"], ["id", "name"])]
        for before, after in (map(table_definition, both), map(history_of, both)):
            assert before != after
            place.tables.ensure(before)
            place.others.ensure(after)

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

    def test_a_missing_dataset_that_the_file_names_is_those_tables_trouble(self, place: Place) -> None:
        place.gone("nowhere")
        with pytest.raises(TableTroubleError):
            place.tables.ensure(replace(PLANES, dataset="nowhere"))
        assert place.tables.ensure(PLANES) == PLANES

    def test_a_mirrors_label_has_the_time_of_the_last_dead_letter_whichever_process_saw_it(self, place: Place) -> None:
        now = 1_700_000_000_000_000
        place.tables.note_dead_letters("planes", "", now)
        place.tables.ensure(PLANES)
        place.tables.ensure(history_of(a_header("airports")))
        hour = 3_600_000_000
        for tables, at in ((place.tables, now + hour), (place.others, now + 2 * hour), (place.tables, now + hour)):
            tables.note_dead_letters("planes", "", at)
        place.tables.note_dead_letters("airports_changelog", "", now)

        assert now + 2 * hour <= place.dead_letters("planes") < now + 3 * hour
        assert place.dead_letters("airports_changelog") == 0

    def test_a_mirror_in_whose_stead_a_history_is_kept_needs_a_resync_and_no_other_does(self, place: Place) -> None:
        other = structs.replace(a_header("airports"), source="spanner:another")
        for definition in (PLANES, table_definition(a_header("pilots")), table_definition(other)):
            place.tables.ensure(definition)
        place.tables.ensure(replace(history_of(a_header("pilots")), instead_of=""))  # kept beside it
        for header in (a_header("airports"), a_header("crews")):  # of another source table, and of none
            place.others.ensure(history_of(header))
        assert place.pending_resync("planes") == ""
        place.others.ensure(HISTORY)

        assert [place.pending_resync(name) for name in ("planes", "pilots", "airports")] == [LEFT_OUT, "", ""]
        place.tables.forget("planes")
        place.tables.ensure(PLANES)
        assert place.pending_resync("planes") == LEFT_OUT, "what it lacks it still lacks"

    def test_a_mirror_that_lacks_snapshot_rows_reports_so_until_a_later_snapshot_is_complete(
        self, place: Place
    ) -> None:
        read = 2_000_000_000_000_000  # later than the table is made
        place.tables.ensure(PLANES)
        place.tables.set_pending_resync(PLANES, read)
        place.others.set_pending_resync(PLANES, read - 1)
        assert place.pending_resync("planes") == ROWS_TOO_OLD
        place.others.complete(PLANES, read, read)
        assert place.pending_resync("planes") == ROWS_TOO_OLD, "of that very snapshot it lacks rows"

        place.others.complete(PLANES, read + 1, read + 1)
        assert place.pending_resync("planes") == ROWS_TOO_OLD, "in the same hour it was read"
        hour = 3_600_000_000
        place.others.complete(PLANES, read + hour, read + hour)
        assert place.pending_resync("planes") == ""
        place.tables.set_pending_resync(PLANES, read)
        assert place.pending_resync("planes") == "", "a snapshot that was read later is complete"

    def test_a_history_keeps_its_changes_as_long_as_was_asked_for_last(self, place: Place) -> None:
        place.tables.ensure(replace(HISTORY, keep=timedelta(days=90)))
        assert place.keep("planes_changelog") == timedelta(days=90)
        place.tables.forget("planes_changelog")
        place.tables.ensure(replace(HISTORY, keep=timedelta(days=30)))
        assert place.keep("planes_changelog") == timedelta(days=30)
        place.others.ensure(HISTORY)
        assert place.keep("planes_changelog") == timedelta(days=30), "nothing is asked for"

    def test_a_mirror_whose_masks_change_needs_a_resync_until_a_later_snapshot_is_complete(self, place: Place) -> None:
        def masked(key: bytes, mask: str = "sha256", header: Header | None = None) -> TableDefinition:
            text = f'mask_key_file = "k"\n[defaults.masked_columns]\nname = "{mask}"\ncolour = "null"\n'
            found = destinations(header or a_header(), Plan(read_tables_file(text), "", MaskKey(key)))
            assert found is not None
            assert found.mirror is not None
            return found.mirror

        def needed(definition: TableDefinition) -> str:
            place.tables.forget("planes")
            place.tables.ensure(definition)
            return place.pending_resync("planes")

        later = iter(range(4_000_000_000_000_000, 5_000_000_000_000_000, 1_000_000))

        def healed() -> str:
            at = next(later)
            place.tables.complete(PLANES, at, at)
            return place.pending_resync("planes")

        wide = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
        same = [masked(b"1"), masked(b"1"), masked(b"1", header=wide), masked(b"1"), masked(b"1", header=wide)]
        assert [needed(each) for each in same] == [""] * 5, "a column of the file that comes later is no other mask"
        for other in (masked(b"2"), masked(b"2", "first 3"), masked(b"2", "first 4", wide), PLANES, masked(b"2")):
            assert (needed(other), needed(other), healed(), needed(other)) == (MASKS_CHANGED, MASKS_CHANGED, "", "")

    def test_the_mirror_of_another_source_table_is_left_as_it_is_whatever_the_masks(self, place: Place) -> None:
        place.tables.ensure(PLANES)
        text = '[tables."hangar.planes"]\nname = "planes"\nmasked_columns = {name = "null"}\n'
        found = destinations(a_header("hangar.planes"), Plan(read_tables_file(text)))
        assert found is not None
        assert found.mirror is not None
        place.tables.forget("planes")
        with pytest.raises(TableTroubleError, match="holds another source table"):
            place.tables.ensure(found.mirror)
        assert place.pending_resync("planes") == ""

    def test_jsonb_is_written_to_a_column_that_was_made_for_json(self, place: Place) -> None:
        for kind in ("JSON", "PG_JSONB", "JSON"):
            place.tables.forget("planes")
            place.tables.ensure(table_definition(a_header(columns=(*PLANE_COLUMNS, ("facts", kind)))))

    def test_an_unknown_table_can_be_forgotten(self, place: Place) -> None:
        place.tables.forget("nothing")


class TestFakeTables(TablesContract):
    @pytest.fixture
    def place(self) -> Place:
        one, two = FakeTables(), FakeTables()
        two.there, two.dead_letters, two.pending_resync = one.there, one.dead_letters, one.pending_resync
        two.complete_since, two.resync_after, two.masks = one.complete_since, one.resync_after, one.masks

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
            lambda name: one.dead_letters.get(name, 0),
            lambda name: one.pending_resync.get(name, ""),
            lambda name: one.there[name].keep,
        )


class TestBigQueryTables(TablesContract):
    @pytest.fixture
    def place(self, stand_in: StandIn, rest: str) -> Place:
        return on_bigquery(stand_in, rest)
