"""Whether the topics keep what is published to them: asked at the start, and again while a service runs."""

from collections.abc import Sequence
from datetime import timedelta

from shared.contracts.errors import MessagesLostError, MisconfiguredError
from shared.pubsub.channels import stoppable_channel
from shared.pubsub.topology import Progressed, check_topic
from shared.runtime.stop import Stop, in_thread


class TopicSubscriptions:
    """The subscriptions of some topics, by their full names: that of the changes first."""

    def __init__(
        self,
        emulator_host: str | None,
        topics: Sequence[str],
        keep_messages_for: timedelta,
        subscription: str | None = None,
    ) -> None:
        """``subscription``: that of the changes which has to keep them; None: any one."""
        self._emulator_host = emulator_host
        self._topics = topics
        self._keep_messages_for = keep_messages_for
        self._subscription = subscription

    async def check(self) -> None:
        """Raise MisconfiguredError if what is published now would be discarded, or kept for too short a time.

        MessagesLostError where it is changes that are discarded.
        """
        await in_thread(self.check_now)

    def check_now(self, stop: Stop, progressed: Progressed = None) -> None:
        """Do the same, and block meanwhile. With ``progressed``, called at each attempt, wait until Pub/Sub answers."""
        with stoppable_channel(self._emulator_host, stop) as channel:
            for topic in self._topics:
                needed = self._subscription if topic == self._topics[0] else None
                try:
                    check_topic(channel, topic, self._keep_messages_for, stop, needed, progressed=progressed)
                except MessagesLostError as error:
                    if topic == self._topics[0]:
                        raise
                    raise MisconfiguredError(error.code, error.message) from error
