"""Whether this identity may write to any table of a dataset: asked when BigQuery has refused one of its tables.

Source: BigQuery REST reference, `tables.testIamPermissions`: it answers, of the permissions asked for, with those that
the caller has. `AppendRows` needs `bigquery.tables.updateData`, and each table is read before it is written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from services.cdc_consumer.adapters.bigquery.errors import ONE_CALL, rest_errors
from services.cdc_consumer.adapters.bigquery.unanswered import AnsweringClient
from services.cdc_consumer.ports import DatasetRefusedError, TableTroubleError
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF

_NEEDED: Final = ("bigquery.tables.get", "bigquery.tables.updateData")
_OTHERS: Final = 3
"""For how many tables, besides the refused one, BigQuery is asked at most."""
_LISTED: Final = 1_000
"""How many tables of the dataset are listed at most to find those: one page."""
_KEPT: Final = 30.0
"""For how many seconds an answer is kept: all tables of a refused dataset are refused at about the same time."""


class WriteRights:
    """The rights of this identity on the tables of one dataset."""

    def __init__(
        self, client: AnsweringClient, project: str, dataset: str, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """``seconds``: a clock that never goes back."""
        self._client = client
        self._dataset = f"{project}.{dataset}"
        self._seconds = seconds
        self._answer: tuple[bool, float] | None = None

    def check(self, refused: str, known: Sequence[str]) -> None:
        """Raise DatasetRefusedError where this identity may write to no table that it asks for.

        It asks for the ``refused`` table, and for some of the ``known`` ones; where none is known, for some tables of
        the dataset that carry our labels.
        """
        now = self._seconds()
        if self._answer is None or now >= self._answer[1] + _KEPT:
            others = [each for each in known if each != refused][-_OTHERS:] or self._listed(refused)
            self._answer = any(self._may_write(each) for each in [refused, *others]), now
        if not self._answer[0]:
            raise DatasetRefusedError(
                f"BigQuery refuses table {self._dataset}.{refused}, and this identity may write to no other table of "
                f"dataset {self._dataset} that was asked for: give it the role roles/bigquery.dataEditor on the "
                "dataset; until then everything waits"
            )

    def _may_write(self, table: str) -> bool:
        try:
            with rest_errors(f"table {self._dataset}.{table}"):
                answer = self._client.test_iam_permissions(f"{self._dataset}.{table}", _NEEDED, **ONE_CALL)
        except TableTroubleError:  # not even that may be asked, or the table is gone
            return False
        return set(_NEEDED) <= set(answer.get("permissions") or ())

    def _listed(self, refused: str) -> Sequence[str]:
        try:
            with rest_errors(f"dataset {self._dataset}"):
                return list(islice(self._ours(refused), _OTHERS))
        except TableTroubleError:
            return ()

    def _ours(self, refused: str) -> Iterator[str]:
        tables = self._client.list_tables(self._dataset, max_results=_LISTED, page_size=_LISTED, **ONE_CALL)
        for table in tables:
            ours = not {MIRROR_OF, HISTORY_OF}.isdisjoint(table.labels)
            if ours and table.table_type == "TABLE" and table.table_id != refused:
                yield table.table_id
