"""Bigtable's errors: each status says what to do next, whoever raised it, and none is swallowed."""

import google.auth.exceptions
import grpc
import pytest
from google.api_core import exceptions
from grpc.aio import AioRpcError, Metadata

from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import status_of

TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
REFUSED = {
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}
UNKNOWN = set(grpc.StatusCode) - TRANSIENT - REFUSED - {grpc.StatusCode.OK}


def raised_by_a_channel(code: grpc.StatusCode) -> Exception:
    return AioRpcError(code, Metadata(), Metadata(), "the details", "")


def raised_by_a_client(code: grpc.StatusCode) -> Exception:
    error: Exception = exceptions.from_grpc_status(code, "the details")  # type: ignore[no-untyped-call]
    return error


RAISED = pytest.mark.parametrize("raised", [raised_by_a_channel, raised_by_a_client])


@RAISED
@pytest.mark.parametrize("code", sorted(TRANSIENT, key=str))
def test_what_may_succeed_later_is_transient(code: grpc.StatusCode, raised: type[Exception]) -> None:
    with pytest.raises(TransientError, match=f"read t: {code.name} the details"), bigtable_errors("read t"):
        raise raised(code)


@RAISED
@pytest.mark.parametrize("code", sorted(REFUSED, key=str))
def test_what_someone_must_fix_is_misconfigured(code: grpc.StatusCode, raised: type[Exception]) -> None:
    with pytest.raises(MisconfiguredError, match=f"read t: {code.name} the details"), bigtable_errors("read t"):
        raise raised(code)


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        ("table projects/p/instances/i/tables/t not found", "BIGTABLE_TABLE"),
        ("App profile not found", "APP_PROFILE"),
        ("Instance not found: projects/p/instances/i", "BIGTABLE_INSTANCE"),
    ],
)
def test_what_is_not_there_is_answered_with_the_setting_that_names_it(message: str, setting: str) -> None:
    with pytest.raises(MisconfiguredError, match=rf"{message}\. Is {setting} right"), bigtable_errors("look at t"):
        raise AioRpcError(grpc.StatusCode.NOT_FOUND, Metadata(), Metadata(), message, "")


def test_a_family_that_is_not_there_is_named_by_no_setting() -> None:
    with (
        pytest.raises(MisconfiguredError, match=r"family not found \[bigtable-refused\]$"),
        bigtable_errors("look at t"),
    ):
        raise AioRpcError(
            grpc.StatusCode.NOT_FOUND, Metadata(), Metadata(), "table t: Requested column family not found", ""
        )


@RAISED
@pytest.mark.parametrize("code", sorted(UNKNOWN, key=str))
def test_what_is_unknown_passes_as_it_is(code: grpc.StatusCode, raised: type[Exception]) -> None:
    error = raised(code)
    with pytest.raises(type(error)), bigtable_errors("read t"):
        raise error
    assert status_of(error) == (code, "the details")


def test_missing_credentials_are_for_a_person_to_give_and_those_out_of_reach_come_later() -> None:
    with pytest.raises(MisconfiguredError), bigtable_errors("connect"):
        raise google.auth.exceptions.DefaultCredentialsError("none")  # type: ignore[no-untyped-call]
    with pytest.raises(TransientError), bigtable_errors("connect"):
        raise google.auth.exceptions.TransportError("no way")  # type: ignore[no-untyped-call]


def test_what_is_no_call_of_bigtable_passes_as_it_is() -> None:
    with pytest.raises(KeyError), bigtable_errors("read t"):
        raise KeyError("k")
    assert status_of(KeyError("k")) == (None, "'k'")
