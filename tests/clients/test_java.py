"""Google's Java clients of BigQuery, of its write API, and of Bigtable's change streams."""

import pytest

from tests.clients.sessions import (
    APPENDS,
    BUILT,
    CHANGE_STREAMS,
    DEFINITIONS_AND_QUERIES,
    SHARED_CONNECTION,
    Seen,
    as_text,
    run_sessions,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

JAVA = ["java", "-cp", f"{BUILT / 'java' / 'classes'}:{BUILT / 'java' / 'libraries'}/*", "clients.Main"]
BIGQUERY = {
    **{name: as_text(saw) for name, saw in {**DEFINITIONS_AND_QUERIES, **APPENDS, **SHARED_CONNECTION}.items()},
    "pages": {"query": [2, 3], "table": [2, 3]},  # this client asks for the size of the first page alone
}


@pytest.fixture(scope="module")
def of_bigquery(bigquery_stand_in: tuple[str, str]) -> Seen:
    rest, grpc = bigquery_stand_in
    return run_sessions(JAVA, BIGQUERY_REST=rest, BIGQUERY_GRPC=grpc)


@pytest.fixture(scope="module")
def of_bigtable(bigtable_front: str) -> Seen:
    return run_sessions(JAVA, BIGTABLE=bigtable_front)


@pytest.mark.parametrize("session", BIGQUERY)
def test_a_session_of_java_with_bigquery(of_bigquery: Seen, session: str) -> None:
    assert of_bigquery[session] == {"session": session, "saw": BIGQUERY[session]}


@pytest.mark.parametrize("session", CHANGE_STREAMS)
def test_a_session_of_java_with_a_bigtable_change_stream(of_bigtable: Seen, session: str) -> None:
    assert of_bigtable[session] == {"session": session, "saw": CHANGE_STREAMS[session]}


def test_every_session_of_java_is_expected(of_bigquery: Seen, of_bigtable: Seen) -> None:
    assert (of_bigquery.keys(), of_bigtable.keys()) == (BIGQUERY.keys(), CHANGE_STREAMS.keys())
