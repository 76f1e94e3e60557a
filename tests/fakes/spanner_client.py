"""Google's client of Spanner in memory: what it is asked, and what it answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from google.api_core.exceptions import DeadlineExceeded
from google.cloud.spanner_v1 import (
    CommitRequest,
    CommitResponse,
    ExecuteSqlRequest,
    PartialResultSet,
    RollbackRequest,
    Session,
)
from google.cloud.spanner_v1.types import MultiplexedSessionPrecommitToken

from services.spanner_reader.adapters.spanner.connection import (
    CallOptions,
    SpannerChannels,
    SpannerDatabaseClient,
    row,
)
from shared.contracts.timestamps import parse_timestamp

NOW: Final = "2026-11-21T09:00:00Z"
"""The time of every read."""
Rows = Sequence[Sequence[Any]]


class FakeAnswer:
    """The responses to a query, each so many seconds after the one before it; the timeout is for all of them."""

    def __init__(
        self,
        responses: Sequence[PartialResultSet],
        error: Exception | None = None,
        *,
        seconds: float = 0.0,
        timeout: float | None = None,
        ends: bool = True,
    ) -> None:
        """``error``: what ends it; one that does not end stops after its last response."""
        self._responses, self._error, self._ends = responses, error, ends
        self._seconds, self._timeout = seconds, timeout

    async def __aiter__(self) -> AsyncIterator[PartialResultSet]:
        for number, response in enumerate(self._responses, 1):
            await asyncio.sleep(self._seconds)
            if self._timeout is not None and number * self._seconds > self._timeout:
                raise DeadlineExceeded("Deadline Exceeded")  # type: ignore[no-untyped-call]
            yield response
        if self._error is not None:
            raise self._error
        if not self._ends:
            await asyncio.Event().wait()

    def cancel(self) -> None:
        """Be over."""


class FakeSpanner:
    """A client whose queries have the rows that a test names, and some of whose commits are asked for again."""

    def __init__(self, rows: Mapping[str, Rows], *, seconds: float = 0.0, asks_again: int = 0) -> None:
        """``rows``: by words of a query's text; ``seconds``: from one response to the next."""
        self.commits: list[Any] = []
        self.rolled_back: list[bytes] = []
        self.begun_after: list[bytes] = []
        """The aborted transaction that each transaction names as the one before it."""
        self.calls: list[tuple[str, Any, bool]] = []
        """What was asked: the call, its request, and whether it is routed to the leader."""
        self.answers: list[FakeAnswer] = []
        """What the next queries are answered with, instead of the rows."""
        self._rows, self._seconds, self._asks_again = rows, seconds, asks_again

    def database(self, options: CallOptions | None = None) -> SpannerDatabaseClient:
        """Return a database by this client."""
        channels = cast("SpannerChannels", SimpleNamespace(client=self, streaming=None, admin=None))
        return SpannerDatabaseClient("projects/p/instances/i/databases/d", channels, options=options)

    async def create_session(self, *, request: Any, metadata: Any, **_call: Any) -> Session:
        self._note("create_session", request, metadata)
        return Session(name="sessions/s", multiplexed=True)

    async def rollback(self, request: RollbackRequest, *, metadata: Any, **_call: Any) -> None:
        self._note("rollback", request, metadata)
        self.rolled_back.append(request.transaction_id)

    async def execute_streaming_sql(self, request: ExecuteSqlRequest, **call: Any) -> FakeAnswer:
        self._note("execute_streaming_sql", request, call["metadata"])
        read_write = request.transaction.begin.read_write
        self.begun_after.append(read_write.multiplexed_session_previous_transaction_id)
        if self.answers:
            return self.answers.pop(0)
        rows = next((rows for words, rows in self._rows.items() if words in request.sql), ())
        return FakeAnswer(_responses(rows), seconds=self._seconds, timeout=call["timeout"])

    async def commit(self, request: CommitRequest, *, metadata: Any, **_call: Any) -> CommitResponse:
        self._note("commit", request, metadata)
        self.commits.append(CommitRequest.pb(CommitRequest.deserialize(CommitRequest.serialize(request))))
        if not self._asks_again:
            return CommitResponse()
        self._asks_again -= 1
        return CommitResponse(precommit_token=MultiplexedSessionPrecommitToken(precommit_token=b"newer", seq_num=2))

    def _note(self, name: str, request: Any, metadata: Sequence[tuple[str, str]]) -> None:
        self.calls.append((name, request, ("x-goog-spanner-route-to-leader", "true") in metadata))


def _responses(rows: Rows) -> Sequence[PartialResultSet]:
    """Return two responses: what the rows are called, and the rows."""
    fields = [{"name": f"c{place}"} for place in range(len(rows[0]) if rows else 1)]
    first = PartialResultSet.pb(PartialResultSet(metadata={"row_type": {"fields": fields}}))
    first.metadata.transaction.id = b"t"
    first.metadata.transaction.read_timestamp.FromNanoseconds(parse_timestamp(NOW))
    second = PartialResultSet.pb(PartialResultSet())
    for one in rows:
        second.values.extend(row(one).values)
    return [PartialResultSet(first), PartialResultSet(second)]
