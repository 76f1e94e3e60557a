"""What the consumer's doctor says of a mirror to those who read it, where the Storage Read API answers or does not."""

from typing import Any

import grpc
import pytest
from google.cloud import bigquery

from services.cdc_consumer.adapters.doctor.mirror_readers import LARGE, inspect_readers
from shared.runtime.findings import Level

NOT_FRESH = (
    "request failed: The table has un-applied upsert data that is not fresh enough to meet table's max_staleness."
)


class Refused(grpc.RpcError):
    """A call's end with an error."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self._words = words

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.__members__.get(self._words, grpc.StatusCode.INVALID_ARGUMENT)

    def details(self) -> str:
        return self._words


class Channel:
    """A channel whose every call ends with the same words, or well."""

    def __init__(self, words: str = "") -> None:
        self.words = words
        self.asked: list[Any] = []

    def unary_unary(self, _method: str, **_more: Any) -> Any:
        return self._call

    def _call(self, request: Any, **_more: Any) -> None:
        self.asked.append(request)
        if self.words:
            raise Refused(self.words)


def a_table(size: int = 0, *, staleness: str = "", ours: bool = True) -> bigquery.Table:
    resource: dict[str, Any] = {
        "tableReference": {"projectId": "p", "datasetId": "d", "tableId": "planes"},
        "schema": {"fields": [{"name": "id", "type": "INT64"}, {"name": "name", "type": "STRING"}]},
        "labels": {"millrace_mirror_of": "x"} if ours else {},
        "numBytes": str(size),
    }
    if staleness:
        resource["maxStaleness"] = staleness
    return bigquery.Table.from_api_repr(resource)


def found(table: bigquery.Table, words: str = "") -> dict[str, str]:
    channel: Any = Channel(words)
    findings = list(inspect_readers(channel, table))
    assert all(one.level is Level.WARNING for one in findings)
    return {one.check: f"{one.detail} -> {one.fix}" for one in findings}


@pytest.mark.parametrize("words", ["", "UNAVAILABLE"])
def test_a_mirror_that_is_read_or_whose_service_does_not_answer_has_no_finding(words: str) -> None:
    assert found(a_table(LARGE, staleness="0-0 0 0:15:0"), words) == {}
    assert found(a_table(LARGE - 1), words) == {}
    assert found(a_table(LARGE, ours=False), NOT_FRESH) == {}


def test_where_this_identity_may_not_ask_it_is_not_known_and_the_role_is_named() -> None:
    channel: Any = Channel("PERMISSION_DENIED")
    (finding,) = inspect_readers(channel, a_table())

    assert (finding.level, finding.check) == (Level.OK, "readers of mirrors")
    assert finding.detail.startswith("not known: ")
    assert "roles/bigquery.readSessionUser on project p lets doctor check" in finding.detail


def test_a_large_mirror_without_max_staleness_is_named_with_its_size() -> None:
    (message,) = found(a_table(LARGE)).values()

    assert "it has 10.0 GB and no max_staleness" in message
    assert "set max_staleness in TABLES_FILE" in message


def test_a_refusal_is_named_with_what_helps() -> None:
    assert (
        "changes wait to be applied; queries read it -> set max_staleness"
        in found(a_table(), NOT_FRESH)["table planes: readers"]
    )
    message = found(a_table(staleness="0-0 0 0:15:0"), NOT_FRESH)["table planes: readers"]
    assert "for longer than its max_staleness, 15m" in message
    assert "raise max_staleness in TABLES_FILE, or assign background applies a reservation" in message


def test_one_column_of_one_stream_is_asked_for() -> None:
    channel: Any = Channel()
    list(inspect_readers(channel, a_table()))

    (request,) = channel.asked
    assert request.max_stream_count == 1
    assert request.read_session.table == "projects/p/datasets/d/tables/planes"
    assert list(request.read_session.read_options.selected_fields) == ["id"]
