"""What the tables file says of Bigtable tables: every option, every mistake with its line, and nothing passed over."""

import pytest

from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import read_tables_file

EXAMPLE = """\
[defaults]
values = "text"

[tables."weather"]
mode = "both"
row_key = "BYTES"
key_prefixes = ["station#"]
families = ["cf", "s*"]
excluded_families = ["s_debug"]
excluded_columns = ["cf:debug", "cf:with:colon"]
values = "json"
qualifiers = "base64"
versions = 3
cell_timestamps = true
garbage_collection = "exclude"
strip_values = true
timestamps = "INT64"

[tables."weather".columns.temperature]
cell = "cf:temp"
type = "FLOAT64"
encoding = "big_endian"
timestamp = "temperature_at"

[tables."weather".columns.station]
family = "s"
values = "text"
qualifiers = "text"

[tables."weather".columns.raw]
cell = "cf:"
encoding = "bytes"
"""


def test_every_option_is_read() -> None:
    options = read_tables_file(EXAMPLE).options("weather")

    assert options.mode == "both"
    assert options.bigtable == BigtableOptions(
        row_key="BYTES",
        key_prefixes=("station#",),
        families=("cf", "s*"),
        excluded_families=("s_debug",),
        excluded_columns=(("cf", b"debug"), ("cf", b"with:colon")),
        values="json",
        qualifiers="base64",
        versions=3,
        cell_timestamps=True,
        garbage_collection="exclude",
        strip_values=True,
        timestamps="INT64",
        columns=(
            CellColumn(
                name="temperature",
                family="cf",
                qualifier=b"temp",
                type="FLOAT64",
                encoding="big_endian",
                timestamp="temperature_at",
            ),
            FamilyColumn(name="station", family="s", values="text", qualifiers="text"),
            CellColumn(name="raw", family="cf", qualifier=b"", type="BYTES", encoding="bytes"),
        ),
    )


def test_what_is_not_said_has_its_default_and_sections_merge_as_ever() -> None:
    assert read_tables_file("").options("t").bigtable == BigtableOptions()
    assert read_tables_file(EXAMPLE).options("other").bigtable == BigtableOptions(values="text")
    merged = read_tables_file('[tables."w*"]\nversions = 2\n[tables."we"]\nrow_key = "BYTES"').options("we")
    assert merged.bigtable == BigtableOptions(versions=2, row_key="BYTES")
    assert read_tables_file(EXAMPLE).section_of("weather", "versions") == '[tables."weather"]'


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [("STRING", "text"), ("BYTES", "bytes"), ("INT64", "text"), ("JSON", "text"), ("BOOL", "text")],
)
def test_a_type_has_a_usual_encoding(kind: str, encoding: str) -> None:
    file = read_tables_file(f'[tables.t.columns.c]\ncell = "f:q"\ntype = "{kind}"')

    (column,) = file.options("t").bigtable.cell_columns
    assert (column.type, column.encoding) == (kind, encoding)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('[defaults]\nrow_key = "TEXT"', 2, "row_key: 'TEXT' is not one of STRING, BYTES; the nearest is "),
        ("[defaults]\nversions = 0", 2, "versions: 0 is not between 1 and 10000"),
        ("[defaults]\nversions = true", 2, "versions: not a whole number, but true or false"),
        ('[defaults]\nfamilies = ["a[b"]', 2, "families: pattern 'a[b': a '[' without its ']'"),
        ('[defaults]\nexcluded_columns = ["cf"]', 2, "excluded_columns: 'cf' is not \"family:qualifier\""),
        ("[defaults]\nstrip_values = 1", 2, "strip_values: not true or false, but a number"),
        ('[defaults]\nfamilys = ["a"]', 2, "unknown key 'familys' in [defaults]; the nearest known one is families"),
        ('[tables.t]\ncolumns = ["c"]', 2, "columns: not sections, but a list"),
        ("[tables.t.columns]\nc = 1", 2, "column c: not a section, but a number"),
        ('[tables.t.columns.c]\ntype = "INT64"', 1, 'column c: say of which cell = "family:qualifier" it is'),
        ('[tables.t.columns.c]\ncell = "f:q"\ntipe = "INT64"', 3, "unknown key 'tipe'; the nearest known one is type"),
        ('[tables.t.columns.c]\ncell = "f:q"\ntype = "INT"', 3, "column c: type: 'INT' is not one of"),
        (
            '[tables.t.columns.c]\ncell = "f:q"\ntype = "JSON"\nencoding = "big_endian"',
            4,
            "column c: JSON is encoded as text, not as big_endian",
        ),
        ('[tables.t.columns.c]\nfamily = "f"\ntype = "INT64"', 3, "unknown key 'type'"),
        ('[tables.t.columns."1c"]\ncell = "f:q"', 1, "column name '1c': letters, digits"),
        ('[tables.t.columns._Partition_x]\ncell = "f:q"', 1, "begin with _PARTITION; give it another name"),
        ('[tables.t.columns._change_type]\nfamily = "f"', 1, "begin with _CHANGE_TYPE; give it another name"),
        (
            '[tables.t.columns.c]\ncell = "f:q"\ntimestamp = "_millrace_at"',
            3,
            "begin with _MILLRACE_; give it another name",
        ),
        ('[tables.t.columns.c]\ncell = "f:q"\ntimestamp = "a b"', 3, "column c: timestamp: column name 'a b'"),
        ('[tables.t.columns.Row_Key]\ncell = "f:q"', 1, "the name Row_Key is taken by the row's key"),
        (
            '[tables.t.columns.c]\ncell = "f:q"\n[tables.t.columns.C]\ncell = "f:r"',
            3,
            "column C: the name C is taken by column c",
        ),
        ('[tables.t.columns.c]\ncell = "f:q"\ntimestamp = "c"', 3, "column c: the name c is taken by column c"),
        (
            '[tables.t.columns.c]\nfamily = "f"\n[tables.t.columns.d]\nfamily = "f"',
            3,
            "column d: family f is column c already",
        ),
    ],
)
def test_every_mistake_is_reported_with_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(MisconfiguredError) as raised:
        read_tables_file(text)

    assert f"tables.toml:{line}: " in str(raised.value)
    assert what in str(raised.value)


def test_mistakes_of_several_columns_are_reported_at_once() -> None:
    text = '[tables.t.columns.a]\ncell = "x"\n[tables.t.columns.b]\ncell = "f:q"\ntype = 1\n[defaults]\nversions = -1'

    with pytest.raises(MisconfiguredError) as raised:
        read_tables_file(text)

    assert [part.partition(": ")[0] for part in str(raised.value).split("\n  ")[1:]] == [
        "tables.toml:2",
        "tables.toml:5",
        "tables.toml:7",
    ]
