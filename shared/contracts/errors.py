"""The three errors. Their class says what to do next, and there is no fourth.

Adapters translate a client's errors into these; an error that no adapter knows ends the process, and the restart is
the retry.
"""

import re
from typing import ClassVar, Final, Self

from shared.contracts.reasons import Reason

_CODE: Final = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]\Z")


def code_of(text: str) -> str | None:
    """Return the code at the end of the text of a MisconfiguredError; None where there is none."""
    found = _CODE.search(text)
    return None if found is None else found[1]


class TransientError(Exception):
    """The same call may succeed later: retry it."""

    fix: ClassVar[str] = ""
    """What to do if it lasts. Empty: what to check follows from the code of the answer."""


class PoisonRecordError(Exception):
    """This record will never succeed as it is: set it aside and go on."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["PoisonRecordError"], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


class MisconfiguredError(Exception):
    """Nothing will succeed until someone acts; the message names the fix. The process exits non-zero.

    Its text ends with ``[code]``. A code belongs to one message, never changes, and is explained in
    docs/reference/error-messages.md. Who adds to a message passes its code on, and quotes ``error.message``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    @classmethod
    def from_text(cls, text: str, code: str) -> Self:
        """Return the error that another process printed; ``code`` where its text ends with none."""
        found = code_of(text)
        return cls(code, text) if found is None else cls(found, text.removesuffix(f" [{found}]"))


class MessagesLostError(MisconfiguredError):
    """No subscription of the topic keeps every published message: messages that Pub/Sub confirmed may be lost."""
