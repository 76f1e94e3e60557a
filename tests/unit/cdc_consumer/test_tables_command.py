"""`tables --check`: what source tables become, offline by a saved schema and by asking a source (a child process)."""

import io
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from services.cdc_consumer.commands.command_line import TablesCommand
from services.cdc_consumer.wiring.tables import check_tables
from shared.contracts.errors import MisconfiguredError
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.wire import batch_of, header_of

ENVIRON = {
    "GOOGLE_CLOUD_PROJECT": "p-project",
    "SUBSCRIPTION": "changes",
    "DEAD_LETTER_TOPIC": "letters",
    "BIGQUERY_DATASET": "mirror",
}
TABLES = {
    "Customers": header_of({"id": "INT64", "Email": "STRING", "Card": "STRING", "Born": "DATE"}, table="Customers"),
    "tmp_1": header_of(table="tmp_1"),
    "Keyless": header_of({"a": "STRING"}, key=(), table="Keyless"),
}
FILE = """\
exclude = ["tmp_*"]
mask_key_file = "{key}"

[tables.Customers]
mode = "both"
keep = "90d"
max_staleness = "15m"
ignored_columns = ["card"]
[tables.Customers.masked_columns]
Email = "sha256"
[tables.Customers.renamed_columns]
Born = "birthday"
"""
SOURCE = """\
import os, sys, json
batches = json.loads(open(sys.argv[1]).read())
under_a_file = "TABLES_FILE" in os.environ
for line in sys.stdin:
    asked = json.loads(line)
    if asked["is"] == "list_tables":
        names = [name for name in batches if not (under_a_file and name.startswith("tmp_"))]
        print(json.dumps({"is": "tables", "names": names, "retention": 7 * 86_400}))
    elif batches[asked["table"]] is None:
        print(json.dumps({"is": "failed", "error": "it has no key"}), flush=True)
        continue
    else:
        print('{"is": "batch", "batch": ' + batches[asked["table"]] + "}")
    print('{"is": "done", "at": "", "sequence": ""}', flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mask.key").write_bytes(b"k" * 40)
    (tmp_path / "tables.toml").write_text(FILE.format(key=tmp_path / "mask.key"))
    return tmp_path / "tables.toml"


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.jsonl"
    path.write_bytes(b"".join(batch_of([], header) + b"\n" for header in TABLES.values()))
    return path


def checked(*, environ: Mapping[str, str] = ENVIRON, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    return check_tables(TablesCommand(**options), environ, Stop(), out), out.getvalue()


def test_a_saved_schema_shows_what_each_table_becomes_and_what_is_left_out_and_why(file: Path, schema: Path) -> None:
    code, text = checked(check=file, schema=schema)

    shown = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "mirror mirror.Customers",
        "key: id",
        "clustered by: id",
        "max_staleness: 15m",
        "Email STRING masked: sha256",
        "birthday DATE from Born",
        "history mirror.Customers_changelog",
        "partitioned by: day of _metadata_spanner_commit_timestamp; keep: 90d",
        "view: mirror.Customers_history",
        "left out: Card (ignored_columns, line 8 of the tables file)",
        'tmp_1: left out: exclude = "tmp_*" (line 1 of the tables file)',
        "no_primary_key: table Keyless: BigQuery applies upserts and deletes by primary key only; leave it",
        "ok settings project p-project, dataset mirror",
        "3 source tables: 2 tables in BigQuery, 1 left out, 1 refused",
    ):
        assert line in shown, text
    assert code == 1


def test_json_holds_the_same(file: Path, schema: Path) -> None:
    _code, text = checked(check=file, schema=schema, json=True)

    customers = json.loads(text)["tables"][0]
    mirror, history = customers["tables"]
    assert [mirror["name"], mirror["max_staleness"], history["keep"]] == ["Customers", "PT900S", "P90D"]
    assert [column["mask"] for column in mirror["columns"] if column["name"] == "Email"] == ["sha256"]


def test_a_source_is_asked_under_the_file_and_its_schema_is_saved_whole(file: Path, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCE)
    batches = {name: batch_of([], each).decode() if each.primary_key else None for name, each in TABLES.items()}
    (tmp_path / "batches.json").write_text(json.dumps(batches))
    command = shlex.join([sys.executable, f"{tmp_path / 'source.py'}", f"{tmp_path / 'batches.json'}"])

    code, asked = checked(check=file, source=command, save_schema=tmp_path / "saved")
    assert "Keyless: REFUSED\n  the source: it has no key" in asked
    saved_code, saved = checked(check=file, schema=tmp_path / "saved")
    for nowhere in (tmp_path, tmp_path / "nowhere" / "saved"):
        with pytest.raises(MisconfiguredError, match=r"--save-schema .* cannot be written"):
            checked(check=file, source=command, save_schema=nowhere)

    file.write_text(FILE.format(key=tmp_path / "mask.key").replace("90d", "6d"))
    short = " ".join(checked(check=file, source=command)[1].split())
    assert 'error tables file: keep line 6 of the tables file: keep = "6d" of table Customers is shorter' in short
    assert "6d" in checked(check=file, schema=tmp_path / "saved")[1], "what is retained is not in a saved schema"

    unlike = ("Keyless", "it has no key", "source tables:")

    def of_others(text: str) -> list[str]:
        return [line for line in text.splitlines() if not any(words in line for words in unlike)]

    assert (code, saved_code, of_others(saved)) == (1, 0, of_others(asked))
    assert "tmp_1: left out" in saved


def test_everything_right_exits_0_and_settings_a_missing_key_or_a_column_that_is_not_there_1(
    file: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "one.jsonl"
    schema.write_bytes(batch_of([], TABLES["Customers"]))
    assert checked(check=file, schema=schema)[0] == 0
    unset = {name: value for name, value in ENVIRON.items() if name != "SUBSCRIPTION"}
    code, text = checked(environ=unset, check=file, schema=schema)
    assert (code, "SUBSCRIPTION is not set" in text) == (1, True)
    file.write_text(FILE.format(key=tmp_path / "mask.key").replace("Email", "Emial"))
    assert "NOT THERE: Emial" in checked(check=file, schema=schema)[1]
    file.write_text(FILE.format(key=tmp_path / "no.key"))
    code, text = checked(check=file, schema=schema)
    assert (code, "error mask key line 2 of the tables file" in " ".join(text.split())) == (1, True)


def test_of_two_source_tables_that_would_be_one_the_second_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[defaults]\nname = "{table}"\n')
    (tmp_path / "s").write_bytes(b"\n".join(batch_of([], header_of(table=name)) for name in ("a.T", "b.T")))

    code, text = checked(check=tmp_path / "t.toml", schema=tmp_path / "s")
    assert (code, "b.T: REFUSED\n  mirror.T would be a table of a.T too" in text) == (1, True)


def test_a_saved_schema_that_is_none_is_refused_with_its_line(file: Path, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(batch_of([], TABLES["tmp_1"]) + b"\n{}\n")
    with pytest.raises(MisconfiguredError, match="line 2 is no change batch"):
        checked(check=file, schema=tmp_path / "s")
    with pytest.raises(MisconfiguredError, match="cannot be read"):
        checked(check=file, schema=tmp_path / "none")
