"""The StatusPages in memory: what each address answers, or why it does not."""

import json
import threading
from dataclasses import dataclass, field
from typing import Any

from services.dead_letter.core.statuses import Silence, StatusAnswer
from services.dead_letter.ports import SilentError


@dataclass
class FakeStatusPages:
    """Documents by address; ``obstacles`` are why a service is not ready. An address without a document is unavailable.

    One that is ``hanging`` answers nothing until ``given_up`` is set.
    """

    documents: dict[str, Any] = field(default_factory=dict)
    obstacles: dict[str, str] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    given_up: threading.Event = field(default_factory=threading.Event)

    def ask(self, address: str) -> StatusAnswer:
        if address in self.hanging:
            assert self.given_up.wait(60)
            raise SilentError(Silence.HANGS, f"{address}/readyz does not answer in 2 s")
        document = self.documents.get(address)
        if document is None:
            raise SilentError(Silence.REFUSES, f"{address}/status cannot be asked: ConnectionRefusedError")
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        why = self.obstacles.get(address)
        return StatusAnswer(ready=why is None, obstacles=why or "", status=data)
