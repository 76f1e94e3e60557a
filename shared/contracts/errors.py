"""The three errors. Their class says what to do next, and there is no fourth.

Adapters translate a client's errors into these; an error that no adapter knows ends the process, and the restart is
the retry.
"""

from shared.contracts.reasons import Reason


class TransientError(Exception):
    """The same call may succeed later: retry it."""


class PoisonRecordError(Exception):
    """This record will never succeed as it is: set it aside and go on."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["PoisonRecordError"], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


class MisconfiguredError(Exception):
    """Nothing will succeed until someone acts; the message names the fix. The process exits non-zero."""


class MessagesLostError(MisconfiguredError):
    """No subscription of the topic keeps every published message: messages that Pub/Sub confirmed may be lost."""
