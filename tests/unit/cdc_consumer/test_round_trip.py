"""What a source's JSON says is what BigQuery gets: JSON -> columns -> protobuf -> read back, against plain Python."""

import json
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from services.cdc_consumer.adapters.bigquery.row_encoder import RowEncoder, message_class
from services.cdc_consumer.core.stream.columns import decode_messages
from tests.seeds import examples
from tests.source_values import COLUMNS, VALUES, Written
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, delete, header_of, messages_of, upsert

NULL = Written(None, None)
rows_written = st.none() | st.fixed_dictionaries(
    {}, optional={name: st.one_of(st.just(NULL), values, values, values) for name, values in VALUES.items()}
)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(rows_written, min_size=1, max_size=25), st.integers(1, 9), st.booleans())
def test_every_value_arrives_as_plain_python_says_it_must(
    rows: Sequence[Mapping[str, Written] | None], per_message: int, ascii_only: bool
) -> None:
    """A row that is None is a delete; a column left out is NULL."""
    header = header_of({"id": "INT64"} | COLUMNS)
    changes = [
        delete(key)
        if row is None
        else upsert(key, json.dumps({name: value.json for name, value in row.items()}, ensure_ascii=ascii_only))
        for key, row in enumerate(rows)
    ]
    data = [batch_of(changes[start : start + per_message], header) for start in range(0, len(changes), per_message)]

    decoded = decode_messages(messages_of(*data), AN_HOUR_LATER)
    assert not decoded.poison
    (table,) = decoded.tables
    encoder = RowEncoder(table.definition)
    messages = [message_class(encoder.descriptor).FromString(each) for each in encoder.encode(table.rows).to_pylist()]

    assert len(messages) == len(rows)
    for key, (row, message) in enumerate(zip(rows, messages, strict=True)):
        arrived = {field.name: value for field, value in message.ListFields() if field.name in COLUMNS}
        expected = {name: value.arrives for name, value in (row or {}).items() if value.arrives is not None}
        # repr, so that NaN is NaN and -0.0 is not 0.0
        assert {name: repr(value) for name, value in arrived.items()} == {
            name: repr(value) for name, value in expected.items()
        }
        assert getattr(message, "id", None) == key
        assert getattr(message, "_CHANGE_TYPE", None) == ("DELETE" if row is None else "UPSERT")
