"""Pub/Sub's calls as raw stubs on a channel, with the plain protobuf classes.

The client library's own classes wrap every message, and cost fourteen times as much to read. A stub takes a request,
``timeout`` and ``metadata``; the metadata route the call as the client library's do.
"""

from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1.types import pubsub

PubsubMessage: Final[Any] = pubsub.PubsubMessage.pb()
PublishRequest: Final[Any] = pubsub.PublishRequest.pb()
PublishResponse: Final[Any] = pubsub.PublishResponse.pb()
ReceivedMessage: Final[Any] = pubsub.ReceivedMessage.pb()
PullRequest: Final[Any] = pubsub.PullRequest.pb()
PullResponse: Final[Any] = pubsub.PullResponse.pb()
AcknowledgeRequest: Final[Any] = pubsub.AcknowledgeRequest.pb()
ModifyAckDeadlineRequest: Final[Any] = pubsub.ModifyAckDeadlineRequest.pb()
GetSubscriptionRequest: Final[Any] = pubsub.GetSubscriptionRequest.pb()
Subscription: Final[Any] = pubsub.Subscription.pb()


def publish_stub(channel: Any) -> Any:
    """Return the call that publishes, on a channel of either kind."""
    return _stub(channel, "Publisher/Publish", PublishRequest, PublishResponse)


def pull_stub(channel: Any) -> Any:
    """Return the call that leases messages."""
    return _stub(channel, "Subscriber/Pull", PullRequest, PullResponse)


def acknowledge_stub(channel: Any) -> Any:
    """Return the call that ends leases: done."""
    return _stub(channel, "Subscriber/Acknowledge", AcknowledgeRequest, Empty)


def modify_ack_deadline_stub(channel: Any) -> Any:
    """Return the call that extends leases, or with 0 seconds nacks messages."""
    return _stub(channel, "Subscriber/ModifyAckDeadline", ModifyAckDeadlineRequest, Empty)


def get_subscription_stub(channel: Any) -> Any:
    """Return the call that reads a subscription's settings."""
    return _stub(channel, "Subscriber/GetSubscription", GetSubscriptionRequest, Subscription)


@lru_cache(maxsize=64)  # of a few topics and subscriptions, for every call
def routing(parameter: str, resource: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that route a call to where its resource lives."""
    return (("x-goog-request-params", f"{parameter}={quote(resource, safe='/')}"),)


def _stub(channel: Any, call: str, request: Any, response: Any) -> Any:
    return channel.unary_unary(
        f"/google.pubsub.v1.{call}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
