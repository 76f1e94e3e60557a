"""What the mirrors in BigQuery hold of the rows of dead letters: to which of them something newer has been applied.

A mirror is found by the label that says of which source table it is, whatever it is called. What cannot be found, or
has no such row, supersedes nothing: the dead letter is sent, and loses by its sequence if it is old.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final

import msgspec
import structlog
from google.api_core import exceptions
from google.cloud import bigquery

from services.dead_letter.core.rows import RowOf
from shared.bigquery.client import bigquery_errors
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.errors import MisconfiguredError
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF, SEQUENCE_COLUMN, label_of
from shared.contracts.timestamps import microseconds, parse_timestamp

_TIMEOUT: Final = 60.0  # seconds for a call
_NO_RETRY: Final[Any] = None  # retries are not nested: the replay has the one policy
_KEYS: Final = 500
"""Rows that one query asks for."""
_PLACE: Final = "_millrace_place"  # of a key among those that a query asks for: no column of a source has the name
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_values: Final = msgspec.json.Decoder(list[object])


def check_dataset(client: bigquery.Client, project: str, dataset: str) -> None:
    """Raise MisconfiguredError or TransientError where the tables of a dataset cannot be listed."""
    path = f"{project}.{dataset}"
    with bigquery_errors(f"dataset {path}", _refusal):
        list(client.list_tables(path, max_results=1, retry=_NO_RETRY, timeout=_TIMEOUT))


@dataclass(frozen=True, slots=True)
class _Mirror:
    path: str
    types: Mapping[str, str]
    """GoogleSQL's names of the columns' types, by the upper-case names of the columns."""


@dataclass(frozen=True, slots=True)
class _Dataset:
    mirrors: Mapping[str, Sequence[str]]
    """Paths of tables, by their labels."""
    with_history: frozenset[str]
    """Labels of source tables of which a history is here."""


class BigQueryMirrors:
    """The Mirrors of some datasets, and of those that tables name (``dataset_of`` a source table, by its schema).

    Which tables a dataset holds is read once, at the first question that it is asked.
    """

    def __init__(
        self,
        client: bigquery.Client,
        project: str,
        datasets: Sequence[str],
        dataset_of: Callable[[str], str | None] = lambda _table: None,
    ) -> None:
        self._client = client
        self._project = project
        self._datasets = datasets
        self._dataset_of = dataset_of
        self._dataset = cache(self._read)
        self._mirrors_of = cache(self._find_mirrors)

    def sequences(self, rows: Sequence[RowOf]) -> Mapping[RowOf, str]:
        """Return the sequence that is applied to each row; as `Mirrors.sequences`."""
        by_table: dict[tuple[str, tuple[str, ...]], list[RowOf]] = {}
        for row in dict.fromkeys(rows):
            by_table.setdefault((row.source, row.key_columns), []).append(row)
        found: dict[RowOf, str] = {}
        for (source, _columns), wanted in by_table.items():
            mirrors = self._mirrors_of(source)
            for start in range(0, len(wanted), _KEYS):
                some = wanted[start : start + _KEYS]
                answers = [self._asked(mirror, some) for mirror in mirrors]
                # Of several that say they are of one source table, the one that is behind decides.
                for row in some:
                    if answers and all(row in answer for answer in answers):
                        found[row] = min((answer[row] for answer in answers), key=parse_sequence)
        return found

    def _find_mirrors(self, source: str) -> Sequence[_Mirror]:
        label = label_of(source)
        own = self._dataset_of(source.rpartition("/tables/")[2])
        names = list(dict.fromkeys([*self._datasets, *([own] if own else [])]))
        datasets = [self._dataset(name) for name in names]
        log = structlog.get_logger().bind(source_table=source)
        if any(label in dataset.with_history for dataset in datasets):
            log.info("replays_go_to_a_history_too", effect="none of its dead letters counts as superseded")
            return ()
        mirrors = []
        for path in [path for dataset in datasets for path in dataset.mirrors.get(label, ())]:
            with bigquery_errors(f"table {path}", _refusal):
                try:
                    table = self._client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT)
                except exceptions.NotFound:
                    continue
            types = {each.name.upper(): _LEGACY_NAMES.get(each.field_type, each.field_type) for each in table.schema}
            mirrors.append(_Mirror(path, types))
        if not mirrors:
            log.warning("no_mirror_found", datasets=names, effect="none of its dead letters counts as superseded")
        return mirrors

    def _read(self, name: str) -> _Dataset:
        path = f"{self._project}.{name}"
        mirrors: dict[str, list[str]] = {}
        with_history: set[str] = set()
        with bigquery_errors(f"dataset {path}", _refusal):
            try:
                for one in self._client.list_tables(path, retry=_NO_RETRY, timeout=_TIMEOUT):
                    if MIRROR_OF in one.labels:
                        mirrors.setdefault(one.labels[MIRROR_OF], []).append(f"{path}.{one.table_id}")
                    if HISTORY_OF in one.labels:
                        with_history.add(one.labels[HISTORY_OF])
            except exceptions.NotFound:
                structlog.get_logger().warning(
                    "dataset_not_found", dataset=path, effect="nothing in it counts as superseded"
                )
        return _Dataset(mirrors, frozenset(with_history))

    def _asked(self, mirror: _Mirror, rows: Sequence[RowOf]) -> Mapping[RowOf, str]:
        asked = [(row, values) for row in rows if (values := _typed(row, mirror)) is not None]
        if not asked:
            return {}
        key_columns = asked[0][0].key_columns
        types = [mirror.types[name.upper()] for name in key_columns]
        parameters: list[Any] = [bigquery.ScalarQueryParameter("last", "INT64", len(asked) - 1)]
        parameters += [
            bigquery.ArrayQueryParameter(f"k{place}", kind, [values[place] for _row, values in asked])
            for place, kind in enumerate(types)
        ]
        config = bigquery.QueryJobConfig(query_parameters=parameters)
        with bigquery_errors(f"table {mirror.path}", _refusal):
            try:
                answer = self._client.query_and_wait(
                    _query(mirror.path, key_columns),
                    job_config=config,
                    retry=_NO_RETRY,
                    job_retry=_NO_RETRY,
                    api_timeout=_TIMEOUT,
                    wait_timeout=_TIMEOUT,
                )
                return {asked[row[_PLACE]][0]: row["sequence"] for row in answer if row["sequence"] is not None}
            except exceptions.NotFound:
                return {}


def _query(path: str, key_columns: Sequence[str]) -> str:
    """Return the query of the rows whose keys are parameters, one array a column, by their place in those.

    The first column stands in a condition of its own, by which BigQuery passes over the blocks of a clustered table.
    """
    same = " AND ".join(f"t.`{name}` = @k{place}[OFFSET({_PLACE})]" for place, name in enumerate(key_columns))
    return (
        f"SELECT {_PLACE}, t.`{SEQUENCE_COLUMN}` AS sequence "  # noqa: S608  names
        f"FROM UNNEST(GENERATE_ARRAY(0, @last)) AS {_PLACE} "
        f"JOIN `{path}` AS t ON {same} WHERE t.`{key_columns[0]}` IN UNNEST(@k0)"
    )


def _typed(row: RowOf, mirror: _Mirror) -> Sequence[object] | None:
    """Return the values of a key as a mirror has them; None where it cannot have such a row."""
    if not {name.upper() for name in (*row.key_columns, SEQUENCE_COLUMN)} <= mirror.types.keys():
        return None
    values = _values.decode(row.key)
    try:
        return [_KINDS[mirror.types[name.upper()]](value) for name, value in zip(row.key_columns, values, strict=True)]
    except (KeyError, ValueError, ArithmeticError):
        return None


def _text(value: object) -> str:
    """Return a text; of a number the one that stands for it in a key, for there are no such keys in BigQuery."""
    match value:
        case str():
            return value
        case float():
            return repr(value)
        case _:
            raise ValueError("neither a text nor a number")


def _instant(value: object) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds(parse_timestamp(str(value))))


_LEGACY_NAMES: Final = {"INTEGER": "INT64", "BOOLEAN": "BOOL"}
_KINDS: Final[Mapping[str, Callable[[object], object]]] = {
    "STRING": _text,
    "INT64": partial(msgspec.convert, type=int),
    "BOOL": partial(msgspec.convert, type=bool),
    "NUMERIC": lambda value: Decimal(str(value)),
    "DATE": lambda value: date.fromisoformat(str(value)),
    "TIMESTAMP": _instant,
}


def _refusal(text: str, error: exceptions.GoogleAPICallError) -> Exception:
    if isinstance(error, exceptions.Forbidden):
        return MisconfiguredError(
            "mirrors-denied",
            f"{text}; give this identity roles/bigquery.dataViewer on the dataset and roles/bigquery.jobUser on the "
            "project, or leave BIGQUERY_DATASET out: then nothing counts as superseded",
        )
    return MisconfiguredError("mirrors-refused", text)
