"""Google's Node clients of BigQuery and of its write API."""

import pytest

from tests.clients.sessions import APPENDS, BUILT, DEFINITIONS_AND_QUERIES, Seen, run_sessions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NODE = ["node", str(BUILT / "node" / "main.mjs")]
BIGQUERY = {**DEFINITIONS_AND_QUERIES, **APPENDS}


@pytest.fixture(scope="module")
def of_bigquery(bigquery_stand_in: tuple[str, str]) -> Seen:
    rest, grpc = bigquery_stand_in
    return run_sessions(NODE, BIGQUERY_REST=rest, BIGQUERY_GRPC=grpc)


@pytest.mark.parametrize("session", BIGQUERY)
def test_a_session_of_node_with_bigquery(of_bigquery: Seen, session: str) -> None:
    assert of_bigquery[session] == {"session": session, "saw": BIGQUERY[session]}


def test_every_session_of_node_is_expected(of_bigquery: Seen) -> None:
    assert of_bigquery.keys() == BIGQUERY.keys()
