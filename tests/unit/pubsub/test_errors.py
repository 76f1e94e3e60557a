"""Pub/Sub's errors: each status says what to do next, and none is swallowed."""

import grpc
import pytest
from google.api_core import exceptions

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import TRANSIENT, pubsub_errors
from tests.fakes.pubsub_channel import FakeRpcError

REFUSED = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        *[(code, TransientError) for code in sorted(TRANSIENT, key=str)],
        *[(code, MisconfiguredError) for code in sorted(REFUSED, key=str)],
    ],
)
def test_a_status_is_transient_or_for_someone_to_fix(code: grpc.StatusCode, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"publish to t: {code.name}"), pubsub_errors("publish to t"):
        raise FakeRpcError(code)


@pytest.mark.parametrize("code", sorted(set(grpc.StatusCode) - TRANSIENT - REFUSED - {grpc.StatusCode.OK}, key=str))
def test_what_is_unknown_passes_through(code: grpc.StatusCode) -> None:
    with pytest.raises(FakeRpcError), pubsub_errors("publish to t"):
        raise FakeRpcError(code)


def test_the_client_librarys_errors_are_the_same_errors() -> None:
    with pytest.raises(TransientError), pubsub_errors("get"):
        raise exceptions.ServiceUnavailable("away", errors=())  # type: ignore[no-untyped-call]
    with pytest.raises(MisconfiguredError, match="setup"), pubsub_errors("get"):
        raise exceptions.NotFound("no such topic")  # type: ignore[no-untyped-call]


def test_other_errors_are_none_of_pubsubs() -> None:
    with pytest.raises(ValueError, match="ours"), pubsub_errors("get"):
        raise ValueError("ours")
