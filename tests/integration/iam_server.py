"""A server that says who may do what, and nothing else: the emulators know no rights."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.pubsub_v1.services.subscriber import client as subscriber_client

_messages: Any = subscriber_client  # the messages of IAM have no types, and come with the client
_iam, _policy = _messages.iam_policy_pb2, _messages.policy_pb2


class Rights:
    """What is granted to who asks, and the roles that others have."""

    def __init__(self) -> None:
        self.address = ""
        self.granted: set[str] = set()
        self.roles: dict[str, list[str]] = {}
        self.denied = False
        self.asked_of: set[str] = set()

    def handlers(self, service: str) -> Any:
        """Return the methods of a service."""

        def handler(call: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.FromString, response_serializer=response.SerializeToString
            )

        methods = {
            "TestIamPermissions": handler(self._test, _iam.TestIamPermissionsRequest, _iam.TestIamPermissionsResponse),
            "GetIamPolicy": handler(self._get, _iam.GetIamPolicyRequest, _policy.Policy),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    def _test(self, request: Any, context: Any) -> Any:
        self._deny(context)
        self.asked_of.add(request.resource)
        return _iam.TestIamPermissionsResponse(permissions=[one for one in request.permissions if one in self.granted])

    def _get(self, _request: Any, context: Any) -> Any:
        self._deny(context)
        return _policy.Policy(bindings=[{"role": role, "members": who} for role, who in self.roles.items()])

    def _deny(self, context: Any) -> None:
        if self.denied:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")


@contextmanager
def serving_rights(service: str) -> Iterator[Rights]:
    """Serve the rights of a service while the block runs."""
    rights, server = Rights(), grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((rights.handlers(service),))
    rights.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield rights
    server.stop(None).wait()
