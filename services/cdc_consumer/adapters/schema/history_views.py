"""The views over histories and tables of entries: made with them, and changed when they are widened.

Source: BigQuery, "Create logical views": a view has the columns that its query had when it was made or last changed.
A view that BigQuery refuses holds up no change: that is logged, and tried again with the next process. Where BigQuery
gives no answer, the history waits as for its own. What it was too busy for is tried again once a minute, while changes
of the history come, and so is a view whose expiry it did not take off: rows wait for neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import ONE_CALL, rest_errors
from services.cdc_consumer.adapters.bigquery.unanswered import AnsweringClient
from services.cdc_consumer.adapters.schema.dataset_defaults import expiring, lasting, of_its_dataset, report_expiry
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.schema.views import view_description, view_name, view_query
from services.cdc_consumer.ports import UnansweredError
from shared.bigquery.client import beyond_limits
from shared.contracts.mirrors import HISTORY_OF

_AGAIN_AFTER: Final = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class View:
    """A view's name, and what was found under it."""

    path: bigquery.TableReference
    found: bigquery.Table | None
    refusal: str = ""
    """Why nothing is known of it."""


def view_path(changelog: bigquery.TableReference, definition: TableDefinition) -> bigquery.TableReference:
    """Return where the view over a history is."""
    return bigquery.DatasetReference(changelog.project, changelog.dataset_id).table(view_name(definition))


class HistoryViews:
    """Makes and changes views."""

    def __init__(self, client: AnsweringClient, seconds: Callable[[], float]) -> None:
        """``seconds``: a clock that never goes back."""
        self._client = client
        self._seconds = seconds
        self._unfinished: dict[str, float] = {}
        """By the identity of a history whose view is not as it should be: from when on BigQuery is asked again."""

    def is_due(self, definition: TableDefinition) -> bool:
        """Return whether the view over a history is to be brought about again now, which is so once a minute."""
        at = self._unfinished.get(definition.identity)
        due = at is not None and self._seconds() >= at
        if due:
            self._try_later(definition)
        return due

    def found(self, changelog: bigquery.TableReference, definition: TableDefinition) -> View:
        """Return what is there by the name of the view over a history."""
        path = view_path(changelog, definition)
        with rest_errors(f"view {path}"):
            try:
                return View(path, self._client.get_table(path, **ONE_CALL))
            except exceptions.NotFound:
                return View(path, None)
            except exceptions.GoogleAPICallError as error:  # whatever it is, the rows are not to wait for it
                self._note(definition, error)
                return View(path, None, str(error.message))

    def bring_about(self, view: View, history: bigquery.Table, definition: TableDefinition) -> None:
        """Make the view, or change it, for a history as it is; Conflict, PreconditionFailed if another was faster."""
        columns = [field.name for field in history.schema]
        changelog = f"{history.project}.{history.dataset_id}.{history.table_id}"
        query = view_query(changelog, columns, definition)
        log = structlog.get_logger().bind(view=f"{view.path.dataset_id}.{view.path.table_id}")
        try:
            if view.refusal:
                log.error("history_view_not_made", error=view.refusal)
                return
            self._unfinished.pop(definition.identity, None)
            if view.found is None:
                made = bigquery.Table(view.path)
                made.view_query = query
                made.description = f"{view_description(definition)}: {definition.mirror_of}, kept by Millrace"
                made.labels = {HISTORY_OF: history.labels[HISTORY_OF]}
                made = self._client.create_table(made, **ONE_CALL)
                log.info("history_view_created")
                self._let_last(made, definition)
            elif view.found.table_type != "VIEW" or not _ours(view.found, history):
                log.error(
                    "history_view_not_made",
                    fix="something else has that name: rename it, or give the source table another (TABLES_FILE)",
                )
            else:
                found = view.found
                if found.view_query != query:
                    found.view_query = query
                    found = self._client.update_table(found, ["view_query"], **ONE_CALL)
                    log.info("history_view_changed")
                self._let_last(found, definition)
        except (exceptions.Conflict, exceptions.PreconditionFailed):
            raise
        except exceptions.GoogleAPICallError as error:
            self._note(definition, error)
            log.error("history_view_not_made", error=str(error.message))  # noqa: TRY400  the message is the whole story

    def _note(self, definition: TableDefinition, error: exceptions.GoogleAPICallError) -> None:
        if isinstance(error, exceptions.ServerError | exceptions.TooManyRequests) or beyond_limits(error):
            self._try_later(definition)

    def _try_later(self, definition: TableDefinition) -> None:
        self._unfinished[definition.identity] = self._seconds() + _AGAIN_AFTER

    def _let_last(self, view: bigquery.Table, definition: TableDefinition) -> None:
        """Take off the expiry that a view has of its dataset; report one that was set by hand."""
        if not expiring(view):
            return
        try:
            dataset = self._client.get_dataset(f"{view.project}.{view.dataset_id}", **ONE_CALL)
            if of_its_dataset(view, dataset):
                lasting(self._client, view)
            else:
                report_expiry(view)
        except (exceptions.GoogleAPICallError, UnansweredError) as error:
            self._try_later(definition)
            report_expiry(view, error=str(getattr(error, "message", error)))


def _ours(view: bigquery.Table, history: bigquery.Table) -> bool:
    return bool(view.labels.get(HISTORY_OF, "") == history.labels[HISTORY_OF])
