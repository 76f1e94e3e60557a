"""Google's Go clients of BigQuery, of its write API (managedwriter), and of Bigtable."""

import pytest

from tests.clients.sessions import (
    APPENDS,
    BUILT,
    CHANGE_STREAMS,
    DEFINITIONS_AND_QUERIES,
    SHARED_CONNECTION,
    Seen,
    run_sessions,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

GO = [str(BUILT / "go")]
BIGQUERY = {**DEFINITIONS_AND_QUERIES, **APPENDS, **SHARED_CONNECTION}


@pytest.fixture(scope="module")
def of_bigquery(bigquery_stand_in: tuple[str, str]) -> Seen:
    rest, grpc = bigquery_stand_in
    return run_sessions(GO, BIGQUERY_REST=rest, BIGQUERY_GRPC=grpc)


@pytest.fixture(scope="module")
def of_bigtable(bigtable_front: str) -> Seen:
    return run_sessions(GO, BIGTABLE=bigtable_front)


@pytest.mark.parametrize("session", BIGQUERY)
def test_a_session_of_go_with_bigquery(of_bigquery: Seen, session: str) -> None:
    assert of_bigquery[session] == {"session": session, "saw": BIGQUERY[session]}


@pytest.mark.parametrize("session", CHANGE_STREAMS)
def test_a_session_of_go_with_a_bigtable_change_stream(of_bigtable: Seen, session: str) -> None:
    assert of_bigtable[session] == {"session": session, "saw": CHANGE_STREAMS[session]}


def test_every_session_of_go_is_expected(of_bigquery: Seen, of_bigtable: Seen) -> None:
    assert (of_bigquery.keys(), of_bigtable.keys()) == (BIGQUERY.keys(), CHANGE_STREAMS.keys())
