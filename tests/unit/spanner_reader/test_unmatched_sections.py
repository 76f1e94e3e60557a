import pytest

from services.spanner_reader.core.schema.shapes import ColumnShape, TableShape
from services.spanner_reader.core.schema.unmatched_sections import unmatched_sections
from shared.contracts.tables_file import TablesFile, read_tables_file

ID = ColumnShape("Id", "INT64", is_key=True)
ORDERS = TableShape((ID, ColumnShape("Note", "STRING"), ColumnShape("Tags", "ARRAY<STRING>")))
TABLES = {"Orders": ORDERS, "sales.Items": ORDERS, "tmp_1": ORDERS}


def found(text: str) -> list[tuple[str, bool]]:
    """Return where a file does not fit, and whether that is refused."""
    return [(one.section, one.refused) for one in unmatched_sections(read_tables_file(text), TABLES)]


def test_no_file_and_one_that_fits_are_passed_over() -> None:
    assert list(unmatched_sections(TablesFile(), TABLES)) == []
    text = """
        include = ["Orders", "sales.*", "tmp_*"]
        exclude = ["tmp_*"]
        [defaults]
        ignored_columns = ["not_everywhere"]
        [tables.Orders]
        ignored_columns = ["NOTE"]
        json_arrays = ["tags"]
        [tables."sales.*"]
        ignored_columns = ["Not there"]
        """
    assert found(text) == []


def test_what_names_no_watched_table_is_reported_with_the_nearest_that_is_watched() -> None:
    text = """
        include = ["*", "Ordrs"]
        exclude = ["temp_*"]
        [tables.orders]
        [tables."sale.*"]
        """
    assert found(text) == [
        ("include", False), ("exclude", False), ('[tables."orders"]', False), ('[tables."sale.*"]', False),
    ]  # fmt: skip
    nearest = [one.fix for one in unmatched_sections(read_tables_file(text), TABLES)]
    for fix, name in zip(nearest, ("Orders", "tmp_1", "Orders", "sales.Items"), strict=True):
        assert f"is {name};" in fix


def test_names_of_another_reader_that_shares_the_file_are_no_mistakes() -> None:
    text = """
        [tables.hourly_weather]
        [tables.airport_traffic]
        [tables."observation_*"]
        """
    assert found(text) == []


def test_a_file_that_leaves_out_every_watched_table_is_one_finding_with_the_tables() -> None:
    text = """
        include = ["nothing_*"]
        """
    (one,) = unmatched_sections(read_tables_file(text), TABLES)
    assert one.section == "include"
    assert all(name in one.why for name in TABLES)
    assert "ALTER" not in one.fix


def test_nothing_is_reported_of_names_where_the_stream_watches_nothing() -> None:
    assert list(unmatched_sections(read_tables_file('[tables.Orders]\nmode = "both"'), {})) == []


@pytest.mark.parametrize(
    ("option", "text"),
    [("ignored_columns", '["id"]'), ("masked_columns", '{ id = "null" }'), ("renamed_columns", '{ id = "number" }')],
)
def test_a_column_of_the_key_that_is_ignored_masked_or_renamed_is_refused_with_its_line(option: str, text: str) -> None:
    others = 'exclude = ["tmp_*", "sales.*"]'
    assert found(f"{others}\n[defaults]\n{option} = {text}") == [("[defaults]", True)]
    (one,) = unmatched_sections(read_tables_file(f'{others}\n[tables."O*"]\n{option} = {text}'), TABLES)
    assert (one.section, one.refused) == ('[tables."O*"]', True)
    expected = f"line 3 of the tables file: {option} names column id of table Orders, which is in its primary key"
    assert one.why.startswith(expected)
    assert one.fix == f"take it out of {option}"


def test_a_column_named_for_one_table_that_it_does_not_have_is_reported_with_the_nearest() -> None:
    text = '[tables.Orders]\nignored_columns = ["Notes"]\njson_arrays = ["Tag"]'
    unmatched = list(unmatched_sections(read_tables_file(text), TABLES))
    assert [one.why.split(",")[0] for one in unmatched] == ["names column Notes", "names column Tag"]
    assert [one.fix.rpartition(" ")[2] for one in unmatched] == ["Note", "Tags"]
    assert not any(one.refused for one in unmatched)
