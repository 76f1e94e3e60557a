"""Credentials that cannot be refreshed: whose error is an outage, and whose a person has to fix, in every service."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from google.auth import exceptions
from google.auth.compute_engine import Credentials

from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from services.cdc_consumer.adapters.bigquery.errors import rest_errors
from services.spanner_reader.adapters.spanner.errors import spanner_errors
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import pubsub_errors

IN_EACH_SERVICE = pytest.mark.parametrize("errors", [bigtable_errors, rest_errors, spanner_errors, pubsub_errors])
Errors = Callable[[str], AbstractContextManager[None]]


def metadata_server_gone(*_arguments: Any, **_more: Any) -> None:
    raise exceptions.TransportError("connection refused")  # type: ignore[no-untyped-call]


UNAVAILABLE = exceptions.RefreshError("internal_failure", retryable=True)  # type: ignore[no-untyped-call]
REVOKED = exceptions.RefreshError("invalid_grant: Token has been expired or revoked.")  # type: ignore[no-untyped-call]


@IN_EACH_SERVICE
def test_a_metadata_server_that_does_not_answer_is_an_outage(errors: Errors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.auth.compute_engine._metadata.get", metadata_server_gone)
    credentials: Any = Credentials  # untyped
    with pytest.raises(TransientError, match="call: no access token now: connection refused"), errors("call"):
        credentials().refresh(None)


@IN_EACH_SERVICE
@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (UNAVAILABLE, TransientError, "call: no access token now: internal_failure"),
        (REVOKED, MisconfiguredError, "revoked.; give the process credentials .gcloud auth"),
    ],
)
def test_a_refresh_that_google_calls_retryable_is_an_outage_and_credentials_that_were_revoked_are_named_with_the_fix(
    errors: Errors, refused: Exception, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), errors("call"):
        raise refused
