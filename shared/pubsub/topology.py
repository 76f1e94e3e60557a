"""Topics and subscriptions: made by set-up, and checked at every start. A topic without a subscription loses messages.

Pub/Sub confirms what is published to a topic without a subscription, and discards it; a subscription with the default
expiry is deleted after 31 days without a consumer, with everything it holds; a filter acknowledges what it leaves out.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import grpc
from google.api_core.exceptions import AlreadyExists, NotFound, PermissionDenied
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.contracts.durations import format_duration
from shared.contracts.errors import MessagesLostError, MisconfiguredError
from shared.pubsub.errors import pubsub_errors
from shared.pubsub.names import project_of, short_name
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

KEEP_MESSAGES_FOR: Final = timedelta(days=7)
ACK_DEADLINE: Final = timedelta(seconds=60)
# Pub/Sub's maximum: an outage costs attempts too, and is no reason for a dead letter.
MAX_DELIVERY_ATTEMPTS: Final = 100
AGENT: Final = "gcp-sa-pubsub.iam.gserviceaccount.com"
SETUP: Final = "python -m services.cdc_consumer setup"

_DEFAULT_RETENTION: Final = timedelta(days=7)  # what an unset retention means to the service
_RETRY_BUDGET: Final = timedelta(seconds=30)
_TIMEOUT: Final = 10.0

T = TypeVar("T")
Progressed = Callable[[], None] | None
"""Called at each attempt while a service waits for Pub/Sub at its start; None: give up after `_RETRY_BUDGET`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubsubTopology:
    """The two topics and their two subscriptions, by full name, and how long the subscriptions keep messages."""

    topic: str
    subscription: str
    dead_letter_topic: str
    dead_letter_subscription: str
    ack_deadline: timedelta = ACK_DEADLINE
    keep_messages_for: timedelta = KEEP_MESSAGES_FOR


@dataclass(frozen=True, slots=True)
class SubscriptionMistake:
    """A setting of a subscription that the consumer cannot rely on, and the command that fixes it."""

    setting: str
    what: str
    fix: str
    needs_another: bool = False
    """Whether another subscription or name is needed, since this one cannot be changed."""

    @property
    def text(self) -> str:
        """Return both in one line."""
        return f"{self.what}: {self.fix}" if self.needs_another else f"{self.what}; fix it with `{self.fix}`"


@dataclass(frozen=True, slots=True)
class ForwardingRight:
    """What Pub/Sub's own agent, of the subscription's project, needs so as to forward what was delivered too often."""

    resource: str
    role: str
    project: str

    @property
    def kind(self) -> str:
        """Return ``topics`` or ``subscriptions``."""
        return self.resource.split("/")[2]

    @property
    def grant(self) -> str:
        """Return the command that grants it."""
        number = f"$(gcloud projects describe {self.project} --format='value(projectNumber)')"
        return (
            f"gcloud pubsub {self.kind} add-iam-policy-binding {short_name(self.resource)} "
            f"--project={project_of(self.resource)} --role={self.role} "
            f'--member="serviceAccount:service-{number}@{AGENT}"'
        )


def forwarding_rights(subscription: str, dead_letter_topic: str) -> tuple[ForwardingRight, ForwardingRight]:
    """Return the two: it publishes to the topic, and acknowledges to the subscription."""
    project = project_of(subscription)
    return (
        ForwardingRight(dead_letter_topic, "roles/pubsub.publisher", project),
        ForwardingRight(subscription, "roles/pubsub.subscriber", project),
    )


def still_to_grant(topology: PubsubTopology) -> str:
    """Return the advice to print after set-up: without it a message that was delivered too often comes on and on."""
    rights = forwarding_rights(topology.subscription, topology.dead_letter_topic)
    return (
        f"So that Pub/Sub forwards to the dead-letter topic what was delivered {MAX_DELIVERY_ATTEMPTS} times, grant it "
        "(once; repeating it changes nothing):\n" + "".join(f"{right.grant}\n" for right in rights)
    )


def create_topology(channel: grpc.Channel, topology: PubsubTopology, stop: Stop | None = None) -> None:
    """Make what is missing, and check what is there; repeating it changes nothing.

    On the service, Pub/Sub's own agent needs `forwarding_rights`, which are granted by who sets the project up.
    """
    pubsub = _Pubsub(channel, stop or Stop())
    pubsub.create_topic(topology.dead_letter_topic)
    pubsub.create_topic(topology.topic)
    kept = {
        "ack_deadline_seconds": int(topology.ack_deadline.total_seconds()),
        "message_retention_duration": topology.keep_messages_for,
        "expiration_policy": {},  # present and without a ttl: never expires
    }
    pubsub.create_subscription({"name": topology.dead_letter_subscription, "topic": topology.dead_letter_topic, **kept})
    policy = {"dead_letter_topic": topology.dead_letter_topic, "max_delivery_attempts": MAX_DELIVERY_ATTEMPTS}
    pubsub.create_subscription(
        {"name": topology.subscription, "topic": topology.topic, "dead_letter_policy": policy, **kept}
    )
    check_subscription(  # first: it names what is wrong with the subscription, and not with its topic
        channel,
        topology.subscription,
        topic=topology.topic,
        dead_letter_topic=topology.dead_letter_topic,
        keep_messages_for=topology.keep_messages_for,
        stop=stop,
    )
    check_topic(channel, topology.topic, topology.keep_messages_for, stop)


def check_topic(
    channel: grpc.Channel,
    topic: str,
    keep_messages_for: timedelta = KEEP_MESSAGES_FOR,
    stop: Stop | None = None,
    subscription: str | None = None,
    *,
    progressed: Progressed = None,
) -> None:
    """Refuse a topic unless a subscription of it takes every message, keeps it as long as asked and never expires.

    ``subscription``: the one that has to; None: any one is enough. MessagesLostError where none takes every message, as
    far as this identity can see.
    """
    pubsub = _Pubsub(channel, stop or Stop(), progressed)
    lacking: list[str] = []
    loses = True
    there = pubsub.subscriptions_of(topic)
    if subscription is not None and subscription not in there:
        raise MessagesLostError(
            "subscription-of-changes-missing",
            f"topic {topic} would lose messages: it has no subscription {subscription}, which SUBSCRIPTION names. Make "
            f"it with `{SETUP}`. If the name is wrong, name the one that the consumer reads, and end each resync that "
            "was requested for it with the reader's command `synced TABLE`",
        )
    for name in there if subscription is None else [subscription]:
        found = pubsub.subscription(name)
        mistakes = ["cannot be read by this identity"] if found is None else losses(found, keep_messages_for)
        if not mistakes:
            return
        loses = loses and found is not None and bool(found.filter)
        lacking.append(f"{name}: " + "; ".join(mistakes))
    which = "none of its subscriptions does" if subscription is None else "the one that SUBSCRIPTION names does not"
    seen = (f"{which}:\n  " + "\n  ".join(lacking)) if lacking else "it has no subscription"
    raise (MessagesLostError if loses else MisconfiguredError)(
        "topic-loses-messages",
        f"topic {topic} would lose messages: it needs a subscription without expiry and filter that keeps them for "
        f"{format_duration(keep_messages_for)}, and {seen}\n"
        f"Make one with `{SETUP}`, or with `gcloud pubsub subscriptions create NAME --topic={topic} "
        f"--expiration-period=never --message-retention-duration={format_duration(keep_messages_for)}`",
    )


def retentions(channel: grpc.Channel, topic: str, stop: Stop) -> Iterator[tuple[str, timedelta]]:
    """Yield each subscription of a topic that this identity can see, in the order of names, and how long it keeps."""
    pubsub = _Pubsub(channel, stop)
    for name in sorted(pubsub.subscriptions_of(topic)):
        subscription = pubsub.subscription(name)
        if subscription is not None:
            yield name, _retention(subscription)


def check_subscription(
    channel: grpc.Channel,
    subscription: str,
    *,
    dead_letter_topic: str,
    topic: str | None = None,
    keep_messages_for: timedelta = KEEP_MESSAGES_FOR,
    stop: Stop | None = None,
    progressed: Progressed = None,
) -> str:
    """Refuse a subscription that the consumer cannot rely on, every mistake in one error; its dead-letter topic too.

    Return its topic.
    """
    found = _Pubsub(channel, stop or Stop(), progressed).existing_subscription(subscription)
    mistakes = [each.text for each in mistakes_of(found, subscription, dead_letter_topic, keep_messages_for, topic)]
    if mistakes:
        raise MisconfiguredError(
            "subscription-unusable",
            f"subscription {subscription} (of topic {found.topic}) cannot be used:\n  " + "\n  ".join(mistakes),
        )
    check_topic(channel, dead_letter_topic, keep_messages_for, stop, progressed=progressed)
    return str(found.topic)


def check_dead_letter_subscription(
    channel: grpc.Channel,
    subscription: str,
    keep_messages_for: timedelta = KEEP_MESSAGES_FOR,
    stop: Stop | None = None,
    topic_of_changes: str | None = None,
    *,
    progressed: Progressed = None,
) -> str:
    """Refuse a subscription of the dead-letter topic that would lose dead letters, every mistake in one error.

    One of the topic of change batches, too: all of them would become dead letters. Return its topic.
    """
    found = _Pubsub(channel, stop or Stop(), progressed).existing_subscription(subscription)
    update = f"gcloud pubsub subscriptions update {short_name(subscription)} --project={project_of(subscription)}"
    mistakes = [replace(one, fix=f"{update} {one.fix}") for one in _fixable(found, keep_messages_for)]
    if topic_of_changes is not None and found.topic == topic_of_changes:
        fix = "name the dead-letter topic's with DEAD_LETTER_SUBSCRIPTION"
        mistakes.append(
            SubscriptionMistake(
                "topic", f"it is of the topic of change batches, {topic_of_changes}", fix, needs_another=True
            )
        )
    if found.dead_letter_policy.dead_letter_topic:
        what = "it has a dead-letter policy of its own, which would forward dead letters that the store cannot take yet"
        mistakes.append(SubscriptionMistake("dead-letter policy", what, f"{update} --clear-dead-letter-policy"))
    fix = f"make another with `{SETUP}` under a new DEAD_LETTER_SUBSCRIPTION, and collect what this one holds first"
    mistakes += [replace(one, fix=fix) for one in _fixed(found, None)]
    if mistakes:
        text = "\n  ".join(one.text for one in mistakes)
        raise MisconfiguredError(
            "dead-letter-subscription-unusable",
            f"subscription {subscription} cannot be used for dead letters:\n  {text}",
        )
    return str(found.topic)


def mistakes_of(
    found: Any, subscription: str, dead_letter_topic: str, keep_messages_for: timedelta, topic: str | None
) -> list[SubscriptionMistake]:
    """Return everything by which the consumer could not rely on a subscription (its plain protobuf message).

    Of a subscription of the dead-letter topic that alone: a dead-letter policy on it would forward to its own topic.
    """
    if found.topic == dead_letter_topic:
        what = f"it is a subscription of the dead-letter topic, {dead_letter_topic}"
        return [
            SubscriptionMistake("topic", what, "name that of the change batches with SUBSCRIPTION", needs_another=True)
        ]
    update = f"gcloud pubsub subscriptions update {short_name(subscription)} --project={project_of(subscription)}"
    mistakes = [replace(one, fix=f"{update} {one.fix}") for one in _fixable(found, keep_messages_for)]
    policy = found.dead_letter_policy
    if policy.dead_letter_topic != dead_letter_topic:
        mistakes.append(
            SubscriptionMistake(
                "dead-letter policy",
                f"its dead-letter topic is {policy.dead_letter_topic or 'not set'}, not {dead_letter_topic}",
                f"{update} --dead-letter-topic={dead_letter_topic} --max-delivery-attempts={MAX_DELIVERY_ATTEMPTS}",
            )
        )
    elif policy.max_delivery_attempts < MAX_DELIVERY_ATTEMPTS:
        mistakes.append(
            SubscriptionMistake(
                "dead-letter policy",
                f"it forwards a message after {policy.max_delivery_attempts} attempts, which an outage uses up",
                f"{update} --max-delivery-attempts={MAX_DELIVERY_ATTEMPTS}",
            )
        )
    return mistakes + _fixed(found, topic)


def losses(subscription: Any, keep_messages_for: timedelta) -> list[str]:
    """Return by what a subscription (its plain protobuf message) loses some of its topic's messages."""
    mistakes = [one.what for one in _fixable(subscription, keep_messages_for) if one.setting in ("expiry", "retention")]
    if subscription.filter:
        mistakes.append("has a filter, which drops what it leaves out")
    if subscription.detached:
        mistakes.append("is detached from its topic")
    return mistakes


def _retention(subscription: Any) -> timedelta:
    if subscription.HasField("message_retention_duration"):
        kept: timedelta = subscription.message_retention_duration.ToTimedelta()
        return kept
    return _DEFAULT_RETENTION


def _fixable(subscription: Any, keep_messages_for: timedelta) -> list[SubscriptionMistake]:
    """Return what can be fixed in place, each with gcloud's option for it as its fix."""
    mistakes = []
    if not subscription.HasField("expiration_policy") or subscription.expiration_policy.HasField("ttl"):
        days = subscription.expiration_policy.ttl.seconds / 86_400 or 31  # 31 days is the default where nothing is set
        expires = f"it expires after {days:g} days without a consumer"
        mistakes.append(SubscriptionMistake("expiry", expires, "--expiration-period=never"))
    retention = _retention(subscription)
    if retention < keep_messages_for:
        wanted = format_duration(keep_messages_for)
        kept = f"it keeps messages for {format_duration(retention)}, not {wanted}"
        mistakes.append(SubscriptionMistake("retention", kept, f"--message-retention-duration={wanted}"))
    if subscription.enable_exactly_once_delivery:
        what = (
            "it has exactly-once delivery, by which acks are refused once a lease has run out, and which nothing here "
            "needs"
        )
        mistakes.append(SubscriptionMistake("exactly-once", what, "--no-enable-exactly-once-delivery"))
    return mistakes


def _fixed(subscription: Any, topic: str | None) -> list[SubscriptionMistake]:
    """Return what only a new subscription fixes."""
    mistakes: dict[str, str] = {}
    if subscription.detached or subscription.topic == "_deleted-topic_":
        mistakes["topic"] = "it is detached from its topic"
    elif topic is not None and subscription.topic != topic:
        mistakes["topic"] = f"it belongs to topic {subscription.topic}, not {topic}"
    if subscription.enable_message_ordering:
        mistakes["ordering"] = "it is ordered, so a key's next message waits for the ack of the one before"
    if subscription.filter:
        mistakes["filter"] = "it has a filter, which drops what it leaves out"
    if (
        subscription.push_config.push_endpoint
        or subscription.bigquery_config.table
        or subscription.cloud_storage_config.bucket
    ):
        mistakes["delivery"] = "its messages are pushed or exported, so they cannot be pulled"
    fix = (
        f"make another with `{SETUP}` under a new SUBSCRIPTION; what this one still holds is in it alone, so keep it "
        "until a reader has been started from before its oldest message (START_TIMESTAMP, another PARTITION_TABLE)"
    )
    return [SubscriptionMistake(setting, what, fix, needs_another=True) for setting, what in mistakes.items()]


class _Pubsub:
    """The few administrative calls, with the project's retries in place of the client library's."""

    def __init__(self, channel: grpc.Channel, stop: Stop, progressed: Progressed = None) -> None:
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self._stop = stop
        self._progressed = progressed

    def create_topic(self, topic: str) -> None:
        self._unless_there(f"create topic {topic}", self._publisher.create_topic, {"name": topic})

    def create_subscription(self, request: Mapping[str, Any]) -> None:
        self._unless_there(f"create subscription {request['name']}", self._subscriber.create_subscription, request)

    def subscriptions_of(self, topic: str) -> list[str]:
        def names() -> list[str]:
            request = {"topic": topic}
            try:
                found = list(self._publisher.list_topic_subscriptions(request=request, retry=None, timeout=_TIMEOUT))
                if not found:  # the emulator lists none of a topic that is not there
                    with suppress(PermissionDenied):
                        self._publisher.get_topic(request=request, retry=None, timeout=_TIMEOUT)
            except NotFound:
                raise MisconfiguredError(
                    "topic-missing",
                    f"topic {topic} does not exist: correct TOPIC or DEAD_LETTER_TOPIC, whichever names it, or make "
                    f"it with `{SETUP}`",
                ) from None
            return found

        return self._call(f"list subscriptions of topic {topic}", names)

    def subscription(self, name: str) -> Any:
        """Return the plain protobuf message (it distinguishes unset from empty), or None where it cannot be had."""

        def get() -> Any:
            try:
                found = self._subscriber.get_subscription(request={"subscription": name}, retry=None, timeout=_TIMEOUT)
            except (NotFound, PermissionDenied):
                return None
            return type(found).pb(found)

        return self._call(f"read subscription {name}", get)

    def existing_subscription(self, name: str) -> Any:
        """Return the same; MisconfiguredError where it cannot be had."""
        if (found := self.subscription(name)) is None:
            raise MisconfiguredError(
                "subscription-missing",
                f"subscription {name} does not exist or cannot be read by this identity: correct SUBSCRIPTION or "
                f"DEAD_LETTER_SUBSCRIPTION, whichever names it, or make it with `{SETUP}`, or grant "
                "roles/pubsub.viewer on it",
            )
        return found

    def _unless_there(self, what: str, create: Callable[..., object], request: Mapping[str, Any]) -> None:
        def create_or_leave() -> None:
            with suppress(AlreadyExists):
                create(request=request, retry=None, timeout=_TIMEOUT)

        self._call(what, create_or_leave)

    def _call(self, what: str, call: Callable[[], T]) -> T:
        progressed = self._progressed
        for attempt in retrying(self._stop, _RETRY_BUDGET if progressed is None else None):
            with attempt:
                if progressed is not None:
                    progressed()
                return pubsub_errors(what)(call)()
        raise AssertionError("a retry ends with a value or an error")
