"""The tables file: every mistake in one error, each with its own line."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.column_options import Mask
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TableOptions, TablesFile, read_tables_file

EXAMPLE = """\
include = ["*"]
exclude = ["tmp_*", "audit.*"]

[defaults]
dataset = "mirror"
name = "{schema}_{table}"
max_staleness = "15m"

[tables."Orders"]
mode = "both"          # and a history
ignored_columns = [
  "Secret",
  "Note",
]
soft_delete = true

[tables."sales.*"]
dataset = "sales"
name = "{table}"
buckets = 64

[tables."sales.Items"]
max_staleness = "1h"
json_arrays = ["Tags"]
jsonb_numbers = "text"
unfit_key = "history"
"""


def mistakes(text: str) -> dict[int, str]:
    with pytest.raises(MisconfiguredError) as error:
        read_tables_file(text, "tables.toml")
    found = [re.fullmatch(r"  tables\.toml:(\d+): (.*)", line) for line in error.value.message.split("\n")[1:]]
    assert all(found), str(error.value)
    return {int(match[1]): match[2] for match in found if match is not None}


def test_a_table_takes_each_option_from_its_own_section_then_from_a_pattern_then_from_the_defaults() -> None:
    file = read_tables_file(EXAMPLE)

    assert file.options("Orders") == TableOptions(
        name="Orders",
        dataset="mirror",
        mode="both",
        ignored_columns=("Secret", "Note"),
        soft_delete=True,
        max_staleness=timedelta(minutes=15),
    )
    assert file.options("sales.Items") == TableOptions(
        name="Items",
        dataset="sales",
        max_staleness=timedelta(hours=1),
        buckets=64,
        json_arrays=("Tags",),
        jsonb_numbers="text",
        unfit_key="history",
    )
    assert file.options("hr.Items").name == "hr_Items"
    assert file.datasets == {"mirror", "sales"}


def test_without_a_file_every_table_is_mirrored_under_its_own_name() -> None:
    assert read_tables_file("") == TablesFile()
    assert TablesFile().included("a.B")
    assert TablesFile().options("a.B") == TableOptions(name="a_B")
    assert TablesFile().options("B") == TableOptions(name="B")


def test_what_is_excluded_is_not_included_and_case_counts() -> None:
    file = read_tables_file(EXAMPLE)

    assert [each for each in ("tmp_a", "TMP_a", "audit.Log", "auditLog") if file.included(each)] == [
        "TMP_a",
        "auditLog",
    ]
    assert not read_tables_file('include = ["a*"]').included("b")
    assert read_tables_file("exclude = []").included("b")


@pytest.mark.parametrize(
    ("template", "table", "name"),
    [
        ("{schema}_{table}", "s.t", "s_t"),
        ("{schema}_{table}", "t", "t"),
        ("{schema}-{table}", "t", "t"),
        ("{table}_{schema}", "t", "t"),
        ("m_{schema}_{table}_x", "t", "m_t_x"),
        ("{table}", "s.t", "t"),
        ("m_{table}", "t", "m_t"),
    ],
)
def test_a_table_without_a_schema_has_neither_it_nor_what_joins_it(template: str, table: str, name: str) -> None:
    assert read_tables_file(f'[defaults]\nname = "{template}"').options(table).name == name


def test_a_dataset_of_the_schema_is_the_consumers_own_where_there_is_no_schema() -> None:
    file = read_tables_file('[defaults]\ndataset = "{schema}"')

    assert file.options("s.t").dataset == "s"
    assert file.options("t").dataset is None
    assert read_tables_file('[defaults]\ndataset = "m_{schema}"').options("t").dataset == "m"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("mdoe = 'both'", "unknown key 'mdoe' in [tables.T]; the nearest known one is mode"),
        ("include = ['a']", "unknown key 'include' in [tables.T]; it stands at the top of the file"),
        ("mode = 'mirrors'", "mode: 'mirrors' is not one of mirror, history, both; the nearest is mirror"),
        ("mode = 3", "mode: not one of mirror, history, both, but a number"),
        ("jsonb_numbers = 'round'", "jsonb_numbers: 'round' is not one of refuse, text; the nearest is refuse"),
        ("unfit_key = 'both'", "unfit_key: 'both' is not one of refuse, history; the nearest is history"),
        ("soft_delete = 'yes'", "soft_delete: not true or false, but a text"),
        ("buckets = true", "buckets: not a whole number, but true or false"),
        ("buckets = 0", "buckets: 0 is not between 1 and 10000"),
        ("max_staleness = 15", "max_staleness: not a text in quotes, but a number"),
        ("max_staleness = '15 minutes'", "max_staleness: not a duration; write a number and a unit"),
        ("max_staleness = '0s'", "max_staleness: not a whole number of seconds above zero"),
        ("ignored_columns = 'A'", 'ignored_columns: not a list of texts (["a", "b"]), but a text'),
        ("ignored_columns = ['A', 'a']", "ignored_columns: 'a' is there twice"),
        ("json_arrays = [1]", "json_arrays: not a text in quotes, but a number"),
        ("name = '{tabel}'", "name: unknown placeholder {tabel}; the nearest known one is {table}"),
        ("name = 'a b'", "name: 'a b': only letters, digits, '_', '-' and {schema}, {table}"),
        ("name = '{table'", "name: '{table': only letters, digits, '_', '-' and {schema}, {table}"),
        ("dataset = 'a-b'", "dataset: 'a-b': only letters, digits, '_' and {schema}, {table}"),
        ("dataset = ''", "dataset: an empty text"),
        ("dataset = 1979-05-27", "dataset: not a text in quotes, but a date or time"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_named_with_its_line_and_fix(line: str, what: str) -> None:
    found = mistakes(f"# first\n[tables.T]\n# second\n\n{line}\n")

    assert list(found) == [5]
    assert found[5].startswith(what)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("mode = 'both'", 1, "unknown key 'mode'; it stands in [defaults], or in the section of a table"),
        ('[tables."a\\u001b"]\nnope = 1', 2, "unknown key 'nope' in [tables.a\\x1b]; the nearest known one is name"),
        ("exclud = []", 1, "unknown key 'exclud'; the nearest known one is exclude"),
        ("\ninclude = []", 2, 'include: an empty list; leave it out, or write ["*"]'),
        ("\ninclude = ['a[b']", 2, "include: pattern 'a[b': a '[' without its ']'"),
        ("tables = 3", 1, "tables: not a table, but a number; write [tables]"),
        ("[tables]\nT = 'both'", 2, "T: not a table, but a text; write [tables.T]"),
        ("[tables]\nT = {mode = 3}", 2, "mode: not one of mirror, history, both, but a number"),
        ("[defaults]\nname = 'x'", 2, "name = 'x' for more than one table: put {table} in it"),
        ("[tables.'a[*']\nmode = 'both'", 1, "pattern 'a[*': a '[' without its ']'"),
        ("[tables.A]\nname = 'x'\n[tables.B]\nname = 'x'", 3, "'B' would be table x, and so would 'A'"),
        ("[tables.A]\nignored_columns = ['x']\njson_arrays = ['X']", 3, "json_arrays names an ignored column: x"),
        ("[tables.A]\nmode = 'both'\n[tables.A]\nsoft_delete = true", 3, "not TOML: Cannot declare ('tables', 'A') tw"),
        ("[defaults]\nmode = 'both'\n\nmode = 'both'\nbuckets = 3", 4, "not TOML: Cannot overwrite a value"),
        ("[defaults]\nmode = 'both", 2, "not TOML: Expected \"'\""),
        ("[defaults]\n\nbuckets = 016\n", 3, "not TOML: Expected newline or end of document after a statement"),
        ("[defaults]\nignored_columns = [\n 'a'\n\nbuckets = 3", 2, "not TOML: Unclosed array (noticed in line 5)"),
        ("[defaults]\nignored_columns = [\n 'a',", 2, "not TOML: Invalid value"),
        ("[default]\nmode = 3", 1, "unknown key 'default'; the nearest known one is defaults"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_file_is_named_with_its_line(text: str, line: int, what: str) -> None:
    found = mistakes(text)

    assert list(found) == [line]
    assert found[line].startswith(what)


def test_behind_a_broken_header_nothing_is_reported_that_could_mislead() -> None:
    assert list(mistakes("exclud = []\n[tables.'T]\nmode = 'both'\n")) == [1, 2]


LINES = [
    ('include = ["*"]', "include = 3"),
    ('exclude = ["tmp_*"]', "exclud = ['tmp_*']"),
    ("[defaults]", None),
    ('mode = "both"', 'mode = "bth"'),
    ("buckets = 16", "buckets = 1.5"),
    ("soft_delete = false", "soft_delete = 0"),
    ("[tables.A]", None),
    ('max_staleness = "15m"', 'max_staleness = "15"'),
    ('ignored_columns = ["x", "y"]', 'ignored_columns = ["x", 3]'),
    ("[tables.'b.*']", None),
    ('name = "{table}"', 'name = "{tabel}"'),
    ('json_arrays = [\n  "u", # of text\n\n  "v",\n]', 'json_arrays = [\n  "u",\n  "U",\n]'),
    ('dataset = "d"', "dataset = d"),
    ('max_staleness = "1h"', 'max_staleness = "1h'),
]


@given(
    st.sets(st.sampled_from([index for index, (_, wrong) in enumerate(LINES) if wrong is not None]), min_size=1),
    st.lists(st.sampled_from(["", "# a note", "\n# two\n"]), min_size=len(LINES), max_size=len(LINES)),
)
def test_whichever_keys_are_broken_the_lines_named_are_their_own(broken: set[int], between: list[str]) -> None:
    text, own = "", []
    for index, ((right, wrong), above) in enumerate(zip(LINES, between, strict=True)):
        text += above + "\n"
        if index in broken:
            own.append(text.count("\n") + 1)
        text += ((wrong or "") if index in broken else right) + "\n"

    assert list(mistakes(text)) == own


@given(st.text(max_size=60))
def test_whatever_is_in_the_file_it_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        read_tables_file(text)
    except MisconfiguredError as error:
        for line in error.message.split("\n  ")[1:]:
            assert re.match(r"tables\.toml:\d+: ", line)


def test_the_examples_of_the_document_can_be_used() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "tables-file.md"
    example, bigtable = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    file = read_tables_file(example)

    assert file.options("Orders").mode == "both"
    assert file.options("Orders").buckets == 64
    assert not file.included("tmp_x")
    assert len(read_tables_file(bigtable).options("weather").bigtable.columns) == 2


def test_the_section_that_a_table_takes_an_option_from_is_named() -> None:
    file = read_tables_file(EXAMPLE)
    assert file.section_of("sales.Items", "max_staleness") == '[tables."sales.Items"]'
    assert file.section_of("sales.Items", "buckets") == '[tables."sales.*"]'
    assert file.section_of("Orders", "max_staleness") == "[defaults]"


def test_masks_names_and_how_long_a_history_keeps_are_read() -> None:
    file = read_tables_file(
        'mask_key_file = "/k"\n[tables.T]\nkeep = "90d"\n[tables.T.masked_columns]\nEmail = "sha256"\n'
        'Phone = "first 4"\nNotes = "null"\n[tables.T.renamed_columns]\nCustName = "name"\n'
    )
    options = file.options("T")

    assert options.masked_columns == (("Email", Mask("sha256")), ("Phone", Mask("first", 4)), ("Notes", Mask("null")))
    assert (options.renamed_columns, options.keep) == ((("CustName", "name"),), timedelta(days=90))
    assert (file.mask_key_file, file.needs_mask_key) == ("/k", True)
    assert file.columns_named_for("T") == {"Email", "Phone", "Notes", "CustName"}
    assert file.where("T", "masked_columns", "Phone") == "line 6 of the tables file"


def test_mistakes_of_masks_and_names_are_found_with_their_lines() -> None:
    found = mistakes(
        "[tables.T]\n"
        'ignored_columns = ["Card"]\n'
        'keep = "36h"\n'
        "[tables.T.masked_columns]\n"
        'Email = "sha256"\n'
        'Phone = "first 0"\n'
        "Notes = 3\n"
        'card = "null"\n'
        "[tables.T.renamed_columns]\n"
        'A = "same"\n'
        'B = "SAME"\n'
        "[tables.U]\n"
        'renamed_columns = { C = "no name" }\n'
        'masked_columns = ["x"]\n'
        'keep = "0d"\n'
    )

    assert found.keys() == {3, 6, 7, 11, 13, 14, 15}
    assert "column 'Phone': 'first 0' is no mask" in found[6]
    assert "'B' would be column SAME, and so would 'A'" in found[11]


def test_a_mask_by_a_digest_needs_a_key_and_no_ignored_column_is_masked_or_renamed() -> None:
    found = mistakes(
        '[tables.T]\nignored_columns = ["Card", "Old"]\n[tables.T.masked_columns]\nEmail = "sha256"\ncard = "null"\n'
        '[tables.T.renamed_columns]\nOld = "new"\n'
    )

    assert "mask_key_file" in found[4]
    assert found[5] == "masked_columns names an ignored column: card"
    assert found[7] == "renamed_columns names an ignored column: Old"


def test_a_history_that_keeps_less_than_its_stream_retains_is_refused_with_its_line() -> None:
    file = read_tables_file('exclude = ["X"]\n[defaults]\nkeep = "1d"\n[tables.T]\nkeep = "7d"\n')
    file.refuse_short_keep(["T", "X"], timedelta(days=7))
    with pytest.raises(
        MisconfiguredError, match=r'^line 3 of the tables file: keep = "1d" of table U is shorter .* 7d'
    ):
        file.refuse_short_keep(["T", "U"], timedelta(days=7))
