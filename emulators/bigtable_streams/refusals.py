"""How the front refuses a call: with a gRPC status and the words that production uses, as far as they are known."""

import grpc


class RefusedError(Exception):
    """A call of which nothing was done."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RefusedError:
    """Make a refusal of what a client should not have asked."""
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> RefusedError:
    """Make a refusal of what names something that is not there."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, message)


def precondition(message: str) -> RefusedError:
    """Make a refusal of what the present state does not allow."""
    return RefusedError(grpc.StatusCode.FAILED_PRECONDITION, message)
