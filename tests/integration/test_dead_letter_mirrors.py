"""What the mirrors in BigQuery (the stand-in) hold of the rows of dead letters; the consumer's own code makes them."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from google.cloud import bigquery

from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.dead_letter.adapters.mirrors import BigQueryMirrors
from services.dead_letter.core.rows import RowOf, content_of
from shared.bigquery.client import open_client
from shared.contracts.change_batch import Change, Header, encode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import read_tables_file
from tests.builders import a_change, a_header
from tests.integration.stand_in import PROJECT, StandIn
from tests.unit.dead_letter.dead_letters import a_dead_letter

pytestmark = pytest.mark.integration

KEYS: dict[str, tuple[str, str, list[Any], list[Any] | None]] = {
    "i": ("INT64", "INT64", ["-5", "9223372036854775807"], [-5, 9223372036854775807]),
    "s": ("STRING", "STRING", ['a "b" \\ é', ""], ['a "b" \\ é', ""]),
    "b": ("BOOL", "BOOL", [True, False], [True, False]),
    "n": ("NUMERIC", "NUMERIC", ["1.50", "-99999999999999999999999999999.999999999"], None),
    "t": ("TIMESTAMP", "TIMESTAMP", ["2026-11-21T12:00:00.123456Z", "0001-01-01T00:00:00Z"], None),
    "d": ("DATE", "DATE", ["2026-11-21", "9999-12-31"], None),
    "y": ("BYTES", "STRING", ["AAECAw==", ""], None),
    "f": ("FLOAT64", "STRING", [1.5, "NaN"], ["1.5", "NaN"]),
}


def mirrors(stand_in: StandIn, *datasets: str) -> BigQueryMirrors:
    return BigQueryMirrors(stand_in.client, PROJECT, datasets or (stand_in.dataset,))


def made(stand_in: StandIn, header: Header, tables: str = "") -> None:
    """Make the tables of a header as the consumer does."""
    plan = Plan(read_tables_file(tables), stand_in.dataset)
    wanted = destinations(header, plan)
    assert wanted is not None
    service = BigQueryTables(stand_in.client, PROJECT, stand_in.dataset)
    for definition in (wanted.mirror, wanted.history):
        if definition is not None:
            service.ensure(definition)


def row_of(change: Change, header: Header | None = None) -> RowOf:
    row = content_of(a_dead_letter(change, header)).row
    assert row is not None
    return row


def planes(stand_in: StandIn, applied: Mapping[int, int], table: str = "planes") -> None:
    rows = ", ".join(f"({key}, '{four_sections(sequence)}')" for key, sequence in applied.items())
    stand_in.run(f"INSERT INTO {table} (id, _millrace_sequence) VALUES {rows}")


def test_what_is_applied_to_each_row_is_found_and_what_is_not_there_is_left_out(stand_in: StandIn) -> None:
    made(stand_in, a_header())
    planes(stand_in, {1: 10, 2: 20})
    one, two, three = (row_of(a_change(key)) for key in (1, 2, 3))

    found = mirrors(stand_in).sequences([one, three, two, one])
    assert found == {one: str(four_sections(10)), two: str(four_sections(20))}
    assert mirrors(stand_in).sequences([]) == {}


def test_more_rows_than_one_query_asks_for(stand_in: StandIn) -> None:
    made(stand_in, a_header())
    planes(stand_in, {key: key for key in range(0, 1_200, 2)})
    rows = [row_of(a_change(key)) for key in range(1_200)]
    found = mirrors(stand_in).sequences(rows)
    assert found == {rows[key]: str(four_sections(key)) for key in range(0, 1_200, 2)}


@pytest.mark.parametrize("name", KEYS)
def test_every_type_of_key_is_asked_for_as_the_mirror_has_it(stand_in: StandIn, name: str) -> None:
    kind, bigquery_type, values, stored = KEYS[name]
    header = a_header(f"keys_{name}", [("region", "STRING"), ("k", kind), ("n", "STRING")], key=["k", "region"])
    made(stand_in, header)
    for number, value in enumerate(stored or values):
        parameters = [bigquery.ScalarQueryParameter("k", bigquery_type, value)]
        stand_in.run(
            f"INSERT INTO keys_{name} (region, k, _millrace_sequence) VALUES ('eu', @k, '{four_sections(number)}')",
            query_parameters=parameters,
        )
    rows = [keyed(header, value, "eu") for value in values]
    elsewhere = [keyed(header, value, "us") for value in values]

    found = mirrors(stand_in).sequences([*rows, *elsewhere])
    assert found == {row: str(four_sections(number)) for number, row in enumerate(rows)}


def keyed(header: Header, value: object, region: str) -> RowOf:
    change = msgspec.structs.replace(a_change(), key=json.dumps({"k": value, "region": region}))
    row = content_of(a_dead_letter(data=encode_batch(header, [change]))).row
    assert row is not None
    return row


def test_a_mirror_is_found_under_any_name_and_in_any_of_the_datasets(stand_in: StandIn) -> None:
    other = StandIn((stand_in._rest, stand_in.grpc))
    made(other, a_header(), '[tables."planes"]\nname = "aircraft"')
    planes(other, {1: 10}, "aircraft")
    row = row_of(a_change(1))
    assert mirrors(stand_in, stand_in.dataset, other.dataset).sequences([row]) == {row: str(four_sections(10))}
    assert mirrors(stand_in).sequences([row]) == {}


@pytest.mark.parametrize("mode", ["mirror", "both"])
def test_a_mirror_is_found_in_the_dataset_that_its_schema_names(stand_in: StandIn, mode: str) -> None:
    other = StandIn((stand_in._rest, stand_in.grpc))
    file = f'[defaults]\ndataset = "{other.dataset[:-4]}{{schema}}"\nname = "{{table}}"\nmode = "{mode}"'
    header = a_header(f"{other.dataset[-4:]}.planes")
    made(stand_in, header, file)
    planes(other, {1: 10})
    row, elsewhere = row_of(a_change(1), header), row_of(a_change(1), a_header("nowhere.planes"))
    named = BigQueryMirrors(
        stand_in.client, PROJECT, [stand_in.dataset], lambda table: read_tables_file(file).options(table).dataset
    )

    assert named.sequences([row, elsewhere]) == ({row: str(four_sections(10))} if mode == "mirror" else {})
    assert mirrors(stand_in).sequences([row]) == {}


def test_of_two_mirrors_of_one_table_the_one_that_is_behind_decides(stand_in: StandIn) -> None:
    other = StandIn((stand_in._rest, stand_in.grpc))
    for place, applied in ((stand_in, {1: 10, 2: 5}), (other, {1: 9, 3: 5})):
        made(place, a_header())
        planes(place, applied)
    rows = [row_of(a_change(key)) for key in (1, 2, 3)]
    assert mirrors(stand_in, stand_in.dataset, other.dataset).sequences(rows) == {rows[0]: str(four_sections(9))}


@pytest.mark.parametrize("mode", ["both", "history"])
def test_where_a_history_is_kept_nothing_is_superseded_for_it_lacks_what_is_old(stand_in: StandIn, mode: str) -> None:
    made(stand_in, a_header(), f'[tables."planes"]\nmode = "{mode}"')
    if mode == "both":
        planes(stand_in, {1: 10})
    assert mirrors(stand_in).sequences([row_of(a_change(1))]) == {}


def test_no_mirror_and_no_dataset_supersede_nothing(stand_in: StandIn) -> None:
    stand_in.run("CREATE TABLE planes (id INT64, _millrace_sequence STRING)")
    planes(stand_in, {1: 10})
    row = row_of(a_change(1))
    assert mirrors(stand_in).sequences([row]) == {}
    assert mirrors(stand_in, "nowhere").sequences([row]) == {}


def test_bigquery_unavailable_is_transient() -> None:
    unavailable = BigQueryMirrors(open_client(PROJECT, "localhost:1"), PROJECT, ("d",))
    with pytest.raises(TransientError):
        unavailable.sequences([row_of(a_change(1))])


@pytest.mark.parametrize("address", ["localhost:port", "ftp://localhost:9050", "http://"])
def test_an_address_that_is_none_is_never_retried(address: str) -> None:
    mirrors = BigQueryMirrors(open_client(PROJECT, address), PROJECT, ("d",))
    with pytest.raises(MisconfiguredError, match="BIGQUERY_EMULATOR_HOST is host:port"):
        mirrors.sequences([row_of(a_change(1))])
