"""The quota of appended bytes a second, over all connections of a project.

Sources: BigQuery, "Storage Write API best practices", section "Connection pool management" (the quota, per project),
and "Introduction to the Storage Write API", section "Use case" (429, resource exhausted, when a peak exceeds it);
"Quotas and limits" (3 GB a second in the multi-regions, of which US, where this is, is one). The text is the service's
own; Google's clients know it by its first words and wait longer (google-cloud-go, managedwriter/retry.go).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from emulators.bigquery.append_errors import AppendRefusedError

BYTES_PER_SECOND: Final = 3_000_000_000


@dataclass
class _Tokens:
    """How many bytes may be appended before the quota is exceeded; counted at a time in microseconds."""

    left: float
    at: int


class Throughput:
    """What each project has left of its quota. ``now`` returns the time in microseconds. Used from the event loop.

    A request passes while anything is left and may leave a debt, so that one larger than the quota passes at last.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._limit = BYTES_PER_SECOND
        self._projects: dict[str, _Tokens] = {}

    def limit(self, bytes_per_second: int) -> None:
        """Set the quota, of which everything is left."""
        with self._lock:
            self._limit = bytes_per_second
            self._projects.clear()

    def check(self, stream: str, size: int) -> None:
        """Count a request of so many bytes for a stream; AppendRefusedError where the quota is exhausted."""
        project = "/".join(stream.split("/", 2)[:2])
        now = self._now()
        with self._lock:
            tokens = self._projects.setdefault(project, _Tokens(self._limit, now))
            refilled = tokens.left + (now - tokens.at) * self._limit / 1_000_000
            tokens.left, tokens.at = min(self._limit, refilled), now
            if tokens.left > 0:
                tokens.left -= size
                return
        raise AppendRefusedError(
            f"Exceeds 'AppendRows throughput' quota, user_id: {project.removeprefix('projects/')}_us (status: "
            "INSUFFICIENT_TOKENS), you can issue a raise quota request through Google Cloud Console. Be sure to "
            f"include this full error message in the request description.  Entity: {stream}",
            code=grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
