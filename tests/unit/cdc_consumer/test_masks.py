"""Masked and renamed columns: known digests, and the same value wherever a change goes."""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from services.cdc_consumer.adapters.mask_key import read_mask_key
from services.cdc_consumer.core.reconcile.comparing import compare
from services.cdc_consumer.core.reconcile.source_table import mirrored, source_rows
from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.core.stream.columns import TableChanges, decode_messages
from services.cdc_consumer.core.types.masks import ColumnMask, MaskKey
from services.cdc_consumer.core.types.types import BYTES, STRING
from shared.contracts.change_batch import Change
from shared.contracts.column_options import Mask
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.tables_file import TablesFile, read_tables_file
from tests.unit.cdc_consumer.decoded import mirror_of, planned, tables_of, wanted
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, delete, header_of, messages_of, upsert

JEFE = MaskKey(b"Jefe")
KEY = MaskKey(b"0123456789abcdef0123456789abcdef")
CUSTOMERS = header_of(
    {
        "id": "INT64",
        "Email": "STRING",
        "Phone": "STRING",
        "Photo": "BYTES",
        "Thumb": "BYTES",
        "Ref": "UUID",
        "Notes": "JSON",
        "Tags": "ARRAY<STRING>",
        "Amount": "NUMERIC",
        "CustName": "STRING",
    },
    table="Customers",
)
FILE = """\
mask_key_file = "/etc/millrace/mask.key"

[tables.Customers]
mode = "both"
json_arrays = ["Tags"]

[tables.Customers.masked_columns]
Email = "sha256"
Phone = "first 4"
photo = "sha256"
Thumb = "first 2"
Ref = "sha256"
Notes = "null"
Tags = "null"
Amount = "null"

[tables.Customers.renamed_columns]
CustName = "name"
Email = "email_digest"
"""


def plan(text: str = FILE, key: MaskKey = KEY) -> Plan:
    return planned(text, key)


def decoded(*changes: Change, text: str = FILE) -> dict[str, TableChanges]:
    return tables_of(text, *changes, header=CUSTOMERS, key=KEY)


def test_a_digest_is_that_of_rfc_4231() -> None:
    digest = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    asked = b"what do ya want for nothing?"

    assert ColumnMask(Mask("sha256"), STRING, JEFE).array(pa.array([asked.decode()])).to_pylist() == [digest]
    assert ColumnMask(Mask("sha256"), BYTES, JEFE).array(pa.array([asked])).to_pylist() == [bytes.fromhex(digest)]


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=300))
def test_a_digest_is_what_the_standard_library_computes(key: bytes, value: bytes) -> None:
    assert MaskKey(key).digest(value) == hmac.digest(key, value, "sha256")


ROW = {
    "Email": "ann@example.com",
    "Phone": "+49\U0001f600 30 1234",
    "Photo": base64.b64encode(b"\x00photo").decode(),
    "Thumb": base64.b64encode(b"\x01\x02\x03").decode(),
    "Ref": "0188a5eb-8a4e-7000-8000-000000000001",
    "Notes": '{"a": 1}',
    "Tags": ["a", None],
    "Amount": "1.50",
    "CustName": "Ann",
}
SHOWN: dict[str, Any] = {
    "email_digest": hmac.new(KEY.secret, b"ann@example.com", hashlib.sha256).hexdigest(),
    "Phone": "+49\U0001f600",
    "Photo": hmac.new(KEY.secret, b"\x00photo", hashlib.sha256).digest(),
    "Thumb": b"\x01\x02",
    "Ref": hmac.new(KEY.secret, b"0188a5eb-8a4e-7000-8000-000000000001", hashlib.sha256).hexdigest(),
    "Notes": None,
    "Tags": None,
    "Amount": None,
    "name": "Ann",
}


def test_a_masked_and_a_renamed_column_are_so_in_the_mirror_and_in_the_history() -> None:
    tables = decoded(upsert(1, ROW), upsert(2, {}))

    for table in tables.values():
        first, second = table.rows.select(["id", *SHOWN]).to_pylist()
        assert first == {"id": 1, **SHOWN}
        assert second == {"id": 2, **dict.fromkeys(SHOWN)}
    assert tables.keys() == {"Customers", "Customers_changelog"}


def test_what_a_soft_delete_keeps_and_old_values_in_a_history_are_masked_and_named_alike() -> None:
    change = structs.replace(delete(1), old=json.dumps(ROW))
    tables = decoded(change, text=FILE.replace('mode = "both"', 'mode = "both"\nsoft_delete = true'))

    assert tables["Customers"].rows.select(list(SHOWN)).to_pylist() == [SHOWN]
    history = tables["Customers_changelog"].rows
    assert history.select(list(SHOWN)).to_pylist() == [dict.fromkeys(SHOWN)]
    (old,) = history.column("_millrace_old_values").to_pylist()
    as_json = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in SHOWN.items()}
    assert json.loads(old) == as_json


def test_a_value_that_does_not_fit_does_not_matter_where_null_is_written() -> None:
    (row,) = decoded(upsert(1, {"Amount": "no number", "Notes": "no json"}))["Customers"].rows.to_pylist()

    assert (row["Amount"], row["Notes"]) == (None, None)


VALUES = st.none() | st.text(max_size=40)
PHOTOS = st.none() | st.binary(max_size=40)


@given(
    st.lists(st.tuples(VALUES, VALUES, PHOTOS, PHOTOS, VALUES), min_size=1, max_size=8), st.sampled_from([KEY, JEFE])
)
def test_a_value_is_the_same_in_mirror_history_snapshot_replay_old_values_and_reconcile(
    values: list[tuple[Any, ...]], key: MaskKey
) -> None:
    rows = [
        {
            "Email": email,
            "Phone": phone,
            "Photo": None if photo is None else base64.b64encode(photo).decode(),
            "Thumb": None if thumb is None else base64.b64encode(thumb).decode(),
            "CustName": name,
        }
        for email, phone, photo, thumb, name in values
    ]
    names = ["email_digest", "Phone", "Photo", "Thumb", "name"]
    changes = [structs.replace(upsert(n, row), old=json.dumps(row)) for n, row in enumerate(rows)]
    live, snapshot = batch_of(changes, CUSTOMERS), batch_of(changes, structs.replace(CUSTOMERS, origin="snapshot"))
    replay = [{"replay_of": "1", "replay_forced": "true"}]
    ways = [
        decode_messages(messages_of(live), AN_HOUR_LATER, plan(key=key)),
        decode_messages(messages_of(live, attributes=replay), AN_HOUR_LATER, plan(key=key)),
        decode_messages(messages_of(snapshot), AN_HOUR_LATER, plan(key=key)),
    ]
    written = [one.rows for way in ways for one in way.tables]

    assert len(written) == 6
    for one in written:
        assert one.select(names).to_pylist() == written[0].select(names).to_pylist()
    history = next(one for one in ways[0].tables if one.definition.append_only)
    for shown, old in zip(
        written[0].select(names).to_pylist(), history.rows.column("_millrace_old_values").to_pylist(), strict=True
    ):
        document = json.loads(old)
        for name, value in shown.items():
            assert document[name] == (base64.b64encode(value).decode() if isinstance(value, bytes) else value)
    table = mirrored(batch_of([], structs.replace(CUSTOMERS, origin="snapshot")), plan(key=key))
    compared, unfit = source_rows(table, [snapshot], plan(key=key))
    differences = compare(table.definition, table.columns, compared, written[0].select(table.schema.names))
    assert (unfit, len(differences.keys), differences.matched) == ([], 0, len(rows))


def test_reconcile_finds_a_mirror_row_that_another_key_has_masked() -> None:
    batch = batch_of([upsert(1, ROW)], structs.replace(CUSTOMERS, origin="snapshot"))
    table, plans = mirrored(batch, plan()), [plan(key=key) for key in (KEY, MaskKey(b"x" * 32))]
    ours, theirs = (source_rows(mirrored(batch, each), [batch], each)[0] for each in plans)

    assert len(compare(table.definition, table.columns, ours, theirs).keys) == 1


@pytest.mark.parametrize(
    "option",
    ['ignored_columns = ["note", "ID"]', 'masked_columns = { ID = "null" }', 'renamed_columns = { ID = "other" }'],
)
def test_a_column_of_the_key_is_neither_ignored_nor_masked_nor_renamed(option: str) -> None:
    with pytest.raises(MisconfiguredError, match=r"^line 3 of the tables file: \w+ names column ID of table Customers"):
        destinations(CUSTOMERS, plan(f"[tables.Customers]\nmode = 'both'\n{option}\n"))


@pytest.mark.parametrize("kind", ["INT64", "JSON", "ARRAY<STRING>", "NUMERIC", "PROTO", "SOMETHING"])
def test_a_type_that_a_mask_does_not_take_is_refused_with_its_line(kind: str) -> None:
    header = header_of({"id": "INT64", "x": kind}, table="t")
    with pytest.raises(
        PoisonRecordError, match=r"^unsupported_type: line 2 of the tables file: .*\"first 3\""
    ) as error:
        destinations(header, plan('[tables.t.masked_columns]\nX = "first 3"\n'))
    assert error.value.reason is Reason.UNSUPPORTED_TYPE


@pytest.mark.parametrize("name", ["PHONE", "id", "_millrace_x"])
def test_a_name_that_another_column_has_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(PoisonRecordError, match="line 1 of the tables file") as error:
        destinations(CUSTOMERS, plan(f'[tables.Customers.renamed_columns]\nEmail = "{name}"\n'))
    assert error.value.reason is Reason.BAD_NAME


def test_two_columns_may_change_names() -> None:
    text = '[tables.Customers.renamed_columns]\nEmail = "Phone"\nPhone = "Email"\n'
    (row,) = decoded(upsert(1, {"Email": "e", "Phone": "p"}), text=text)["Customers"].rows.to_pylist()

    assert (row["Email"], row["Phone"]) == ("p", "e")


ENTRIES = structs.replace(
    header_of({"id": "STRING", "row_key": "STRING", "value": "BYTES"}, table="w"), content="entries"
)


def test_a_change_log_that_would_hold_what_a_mirror_masks_is_refused() -> None:
    text = '[tables.w]\nmode = "both"\n[tables.w.masked_columns]\nphone = "null"\n'
    with pytest.raises(MisconfiguredError, match="line 3 of the tables file: the change log of table w holds"):
        destinations(ENTRIES, plan(text))
    for right in (text + 'value = "null"\n', text.replace("[tables.w.", "strip_values = true\n[tables.w.")):
        assert wanted(right, ENTRIES).history is not None


def test_a_label_has_how_columns_are_masked_and_changes_only_with_that() -> None:
    def options(text: str = FILE, key: MaskKey = KEY) -> Any:
        return mirror_of(text, CUSTOMERS, key).masked_columns

    there = {"ID", "EMAIL_DIGEST", "PHONE", "NAME"}
    label = options().label(there)
    assert label.endswith(f"-{KEY.fingerprint}")
    assert KEY.secret.decode() not in repr(options()) + repr(plan())
    assert options().changed(there, label, there) == ""
    assert "line 1 of the tables file" in options(key=JEFE).changed(there, label, there)
    assert options(FILE.replace("first 4", "first 5")).changed(there, label, there)
    assert not options(FILE.replace("first 2", "first 3")).changed(there, label, there), "the table has no such column"
    assert options('[defaults]\nmode = "both"').changed(there, label, there)
    assert options().changed(there, "", there), "its rows are not masked"
    assert options().changed({"ID", "CUSTNAME"}, "", {"ID", "NAME"}), "older rows have the value under its old name"
    assert not options().changed({"ID"}, "", {"ID", "NAME"}), "a new column"


# The file of the mask key: what is wrong with it is said with its line in the tables file.


SECRET = b"0123456789abcdef0123456789abcdef"


def file_of(path: Path) -> TablesFile:
    return read_tables_file(f'# masks\nmask_key_file = "{path}"\n[defaults.masked_columns]\nEmail = "sha256"\n')


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_key_is_the_bytes_of_its_file_without_the_line_break_at_its_end(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "key").write_bytes(SECRET + end)
    key = read_mask_key(file_of(tmp_path / "key"))

    assert key is not None
    assert (key.secret, SECRET.decode() in repr(key)) == (SECRET, False)
    assert read_mask_key(file_of(tmp_path / "key"), expected=key.fingerprint) == key


@pytest.mark.parametrize(
    ("content", "expected", "why"),
    [
        (None, "", "cannot be read .No such file"),
        (b"short\n", "", "has 5 bytes, and a key needs 32"),
        (SECRET, "0" * 16, "another key on this machine"),
    ],
)
def test_a_key_that_is_missing_short_or_another_one_is_refused(
    tmp_path: Path, content: bytes | None, expected: str, why: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(MisconfiguredError, match=f"^line 2 of the tables file: mask_key_file = .* {why}"):
        read_mask_key(file_of(tmp_path / "key"), expected=expected)


def test_a_path_that_no_system_takes_is_refused_as_one_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=r"^line 2 of .* cannot be read \(embedded null byte\)"):
        read_mask_key(file_of(tmp_path / r"a\u0000b"))


def test_no_file_is_read_where_nothing_is_masked_by_a_digest() -> None:
    assert read_mask_key(read_tables_file('mask_key_file = "/no/key"\n')) is None
    assert read_mask_key(TablesFile()) is None
