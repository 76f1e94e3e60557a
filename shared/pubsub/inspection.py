"""What a `doctor` inspects in Pub/Sub: subscriptions by their settings, topics by who keeps their messages, and rights.

Every setting is a finding of its own, right or wrong. The start checks of the services (`topology.py`) stop at less.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.contracts.durations import format_duration
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.channels import open_channel
from shared.pubsub.errors import status_of
from shared.pubsub.names import project_of, short_name
from shared.pubsub.topology import (
    ACK_DEADLINE,
    AGENT,
    MAX_DELIVERY_ATTEMPTS,
    SETUP,
    SubscriptionMistake,
    forwarding_rights,
    losses,
    mistakes_of,
)
from shared.runtime.findings import Finding, Level

_TIMEOUT: Final = 10.0  # seconds
_SHORT_DEADLINE: Final = timedelta(seconds=30)
_NEEDED: Final = {
    "consume": "roles/pubsub.subscriber",
    "get": "roles/pubsub.viewer",
    "publish": "roles/pubsub.publisher",
}

T = TypeVar("T")


def inspect_topics(
    emulator_host: str | None, topics: Mapping[str, str | None], keep_messages_for: timedelta, login: str
) -> Iterator[Finding]:
    """Inspect topics that a service publishes to, and the subscription of each that has to be there, by full names.

    ``login`` is the fix of missing credentials.
    """
    try:
        opened = open_channel(emulator_host)
    except MisconfiguredError as error:
        yield Finding.error("Pub/Sub", str(error), login)
        return
    with opened as channel:
        inspection = Inspection(channel)
        for topic, subscription in topics.items():
            yield from inspection.topic(topic, keep_messages_for, subscription)
            yield from inspection.rights(topic, "publish")


class Inspection:
    """Inspects topics and subscriptions over one channel. Changes nothing, leases nothing, and never raises."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))

    def subscription(
        self, name: str, *, dead_letter_topic: str, keep_messages_for: timedelta, topic: str | None = None
    ) -> Iterator[Finding]:
        """Inspect every setting of a subscription that the consumer reads from."""
        what = f"subscription {short_name(name)}"
        found = self._asked(what, self._get_subscription, name)
        if isinstance(found, Finding):
            yield found
            return
        yield Finding.ok(what, f"{name} is there, of topic {found.topic}")
        wrong = mistakes_of(found, name, dead_letter_topic, keep_messages_for, topic)
        yield from _settings(what, found, wrong)
        deadline = timedelta(seconds=found.ack_deadline_seconds or 10)
        fix = f"gcloud pubsub subscriptions update {short_name(name)} --project={project_of(name)} --ack-deadline="
        yield (
            Finding.ok(f"{what}: ack deadline", f"{deadline.seconds}s")
            if deadline >= _SHORT_DEADLINE
            else Finding.warning(
                f"{what}: ack deadline",
                f"{deadline.seconds}s: a busy moment of Spark's outlasts it, and messages come twice",
                f"{fix}{ACK_DEADLINE.seconds}",
            )
        )

    def topic(self, name: str, keep_messages_for: timedelta, needed: str | None = None) -> Iterator[Finding]:
        """Check whether what is published to a topic is kept: what has no subscription is confirmed and discarded.

        ``needed``: the subscription that has to keep it; None: any one.
        """
        what = f"topic {short_name(name)}"
        found = self._asked(what, self._subscriptions_of, name)
        if isinstance(found, Finding):
            yield found
            return
        lacking = []
        if needed is not None and needed not in found:
            lacking.append(f"{needed}, which SUBSCRIPTION names, is none of its subscriptions")
        for subscription in found if needed is None else {needed} & set(found):
            read = self._asked(f"{what}: {subscription}", self._get_subscription, subscription)
            mistakes = [read.detail] if isinstance(read, Finding) else losses(read, keep_messages_for)
            if not mistakes:
                yield Finding.ok(what, f"{name} is there, and {subscription} keeps what is published")
                return
            lacking.append(f"{subscription}: {'; '.join(mistakes)}")
        seen = "no subscription keeps what is published: it would be lost"
        yield Finding.error(
            what,
            "\n".join([seen, *lacking]),
            f"{SETUP}\nor gcloud pubsub subscriptions create NAME --topic={name} --expiration-period=never "
            f"--message-retention-duration={format_duration(keep_messages_for)}",
        )

    def rights(self, resource: str, *wanted: str) -> Iterator[Finding]:
        """Check whether this identity may do what is wanted (``consume``, ``get``, ``publish``) with a resource."""
        kind = resource.split("/")[2]
        what = f"rights on {kind[:-1]} {short_name(resource)}"
        permissions = {f"pubsub.{kind}.{each}": _NEEDED[each] for each in wanted}
        found = self._asked(what, self._granted, resource, tuple(permissions))
        if isinstance(found, Finding):
            yield found
            return
        missing = [each for each in permissions if each not in found]
        if not missing:
            yield Finding.ok(what, ", ".join(permissions))
            return
        command = f"gcloud pubsub {kind} add-iam-policy-binding {short_name(resource)} --project={project_of(resource)}"
        yield Finding.error(
            what,
            f"this identity lacks {', '.join(missing)}",
            "\n".join(
                f"{command} --member=IDENTITY --role={role}" for role in {permissions[one]: 0 for one in missing}
            ),
        )

    def forwarding(self, subscription: str, dead_letter_topic: str) -> Iterator[Finding]:
        """Check whether Pub/Sub's own agent may forward what was delivered too often: nothing says so if it may not."""
        for right in forwarding_rights(subscription, dead_letter_topic):
            what = f"Pub/Sub's right on {right.kind[:-1]} {short_name(right.resource)}"
            found, role, fix = self._asked(what, self._bindings, right.resource), right.role, right.grant
            if isinstance(found, Finding):
                yield Finding(found.level, found.check, found.detail, fix if found.level is not Level.OK else "")
            elif any(one.role == role and any(AGENT in each for each in one.members) for one in found):
                yield Finding.ok(what, role)
            else:
                yield Finding.warning(
                    what,
                    f"Pub/Sub's service agent does not have {role} here (it may have it from the project): without it "
                    f"a message delivered {MAX_DELIVERY_ATTEMPTS} times is delivered on and on",
                    fix,
                )

    def _get_subscription(self, name: str) -> Any:
        found = self._subscriber.get_subscription(request={"subscription": name}, retry=None, timeout=_TIMEOUT)
        return type(found).pb(found)

    def _subscriptions_of(self, topic: str) -> Sequence[str]:
        self._publisher.get_topic(request={"topic": topic}, retry=None, timeout=_TIMEOUT)  # or there is none
        request = {"topic": topic}
        return list(self._publisher.list_topic_subscriptions(request=request, retry=None, timeout=_TIMEOUT))

    def _granted(self, resource: str, permissions: Sequence[str]) -> Sequence[str]:
        request = {"resource": resource, "permissions": list(permissions)}
        return list(self._subscriber.test_iam_permissions(request=request, timeout=_TIMEOUT).permissions)

    def _bindings(self, resource: str) -> Sequence[Any]:
        return list(self._subscriber.get_iam_policy(request={"resource": resource}, timeout=_TIMEOUT).bindings)

    def _asked(self, what: str, call: Callable[..., T], *arguments: Any) -> T | Finding:
        """Return the answer, or what it means that there is none."""
        try:
            return call(*arguments)
        except (grpc.RpcError, GoogleAPICallError) as error:
            code = status_of(error)[0] or grpc.StatusCode.UNKNOWN
        match code:
            case grpc.StatusCode.NOT_FOUND:
                fix = f"correct the setting that names it, or make it with {SETUP}"
                return Finding.error(what, f"{arguments[0]} does not exist", fix)
            case grpc.StatusCode.PERMISSION_DENIED:
                return Finding.error(
                    what, f"{arguments[0]} cannot be read by this identity", "grant it roles/pubsub.viewer"
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                return Finding.ok(what, "not known here: an emulator has no rights")
            case grpc.StatusCode.UNAUTHENTICATED:
                return Finding.error(
                    what,
                    "these credentials are not taken",
                    "run `gcloud auth application-default login` or give the workload a service account",
                )
            case _:
                return Finding.error(
                    what,
                    f"Pub/Sub does not answer: {code.name}",
                    "check the network, and PUBSUB_EMULATOR_HOST, which is for emulators only; then ask again",
                )


def _settings(what: str, found: Any, wrong: Sequence[SubscriptionMistake]) -> Iterator[Finding]:
    """Return a finding for each setting, those that are right included."""
    right = {
        "topic": found.topic,
        "expiry": "never expires",
        "retention": "keeps messages as long as asked",
        "ordering": "not ordered",
        "filter": "no filter",
        "delivery": "pulled",
        "exactly-once": "off",
        "dead-letter policy": f"to {found.dead_letter_policy.dead_letter_topic} after "
        f"{found.dead_letter_policy.max_delivery_attempts} attempts",
    }
    by_setting = {mistake.setting: mistake for mistake in wrong}
    for setting, detail in right.items():
        mistake = by_setting.get(setting)
        if mistake is None:
            yield Finding.ok(f"{what}: {setting}", detail)
        else:
            yield Finding.error(f"{what}: {setting}", mistake.what, mistake.fix)
