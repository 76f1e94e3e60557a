"""Pub/Sub as the service is: a pull's answer has as many messages as were asked for, however large they are.

The emulator's answers end at about eleven million bytes. So this stands before it, and makes one answer of several.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from shared.pubsub.channels import open_channel
from shared.pubsub.stubs import PullRequest, PullResponse, pull_stub

_LARGE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class _Generous(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._pull = pull_stub(channel)

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method.endswith("/Pull"):
            return grpc.unary_unary_rpc_method_handler(
                self._pulled,
                request_deserializer=PullRequest.FromString,
                response_serializer=PullResponse.SerializeToString,
            )
        call = self._channel.unary_unary(method, None, None)  # bytes as they are
        return grpc.unary_unary_rpc_method_handler(lambda request, context: _forwarded(call, request, context))

    def _pulled(self, request: Any, context: Any) -> Any:
        answer = PullResponse()
        while not answer.received_messages and context.is_active():
            while len(answer.received_messages) < request.max_messages:
                left = request.max_messages - len(answer.received_messages)
                asked = PullRequest(subscription=request.subscription, max_messages=left, return_immediately=True)
                more = self._pull(asked, timeout=10).received_messages
                if not more:
                    break
                answer.received_messages.extend(more)
        return answer


def _forwarded(call: Any, request: bytes, context: Any) -> Any:
    try:
        return call(request, timeout=context.time_remaining())
    except grpc.RpcError as error:
        context.abort(error.code(), error.details())


@contextmanager
def generous_pubsub(emulator: str) -> Iterator[str]:
    """Give the ``host:port`` of a server before an emulator."""
    with open_channel(emulator) as channel:
        server = grpc.server(ThreadPoolExecutor(8), handlers=[_Generous(channel)], options=_LARGE)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
