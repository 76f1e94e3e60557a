"""Bigtable's errors as the three errors of ours, whether a raw channel raises them or a generated client."""

from contextlib import AbstractContextManager
from typing import Any

import grpc

from shared.contracts.errors import MisconfiguredError
from shared.pubsub.errors import grpc_errors, status_of


def bigtable_errors(what: str) -> AbstractContextManager[None]:
    """Translate what a call raises; see `grpc_errors`."""
    return grpc_errors(what, _words, _refused)


def _words(code: grpc.StatusCode, error: Any) -> str:
    return f"{code.name} {status_of(error)[1]}"


def _refused(what: str, words: str, code: grpc.StatusCode, message: str) -> Exception:
    named_by = _named_by(message.lower()) if code is grpc.StatusCode.NOT_FOUND else ""
    return MisconfiguredError("bigtable-refused", f"{what}: {words}{named_by}")


def _named_by(message: str) -> str:
    """Return which settings name what is not there; families, say, no setting names."""
    if "app profile" in message:
        return ". Is APP_PROFILE right, or PARTITION_APP_PROFILE?"
    if "family" in message:
        return ""
    if "instance" in message and "table" not in message:
        return ". Is BIGTABLE_INSTANCE right, or PARTITION_INSTANCE?"
    if "table" in message:
        return ". Is BIGTABLE_TABLE right, or PARTITION_TABLE?"
    return ""
