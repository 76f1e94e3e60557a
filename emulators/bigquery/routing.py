"""The header that leads a call to its project's region: ``x-goog-request-params``, a URL's query in one value.

Sources: storage.proto (by which field of a request each method is routed, in its `google.api.http`); for AppendRows,
which carries its stream in the first message only, what Google's own clients send: ``write_stream=`` with the stream's
name or, where a connection serves many tables, ``write_location=projects/p/locations/l`` (java-bigquerystorage,
ConnectionWorker), or no header at all (Go's managedwriter, and Java's StreamWriter over a channel of the caller's).

The service takes most calls without the header and refuses some ("Cannot route on empty project id ''":
python-bigquery-storage #577, google-cloud-python #16650). Here they are taken unless a fault refuses them (a `Fault`
``on`` routing). A header that is sent must lead to the resource.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

from emulators.bigquery.append_errors import closing

Metadata = Iterable[tuple[str, str | bytes]]
_HEADER: Final = "x-goog-request-params"
_PROJECT: Final = re.compile(r"projects/([^/]+)(?:/.*)?")


NOT_ROUTED: Final = "Cannot route on empty project id ''"
"""The service's message where it does not find the project in the header."""


def is_sent(metadata: Metadata) -> bool:
    """Return whether a call carries the header."""
    return bool(_parameters(metadata))


class AppendRouting:
    """Where the header of one AppendRows call leads, if it carries one; AppendRefusedError where that is nowhere."""

    def __init__(self, metadata: Metadata) -> None:
        parameters = _parameters(metadata)
        self._stream = parameters.get("write_stream", "")
        self._led_to = self._stream or parameters.get("write_location", "")
        self._sent = bool(parameters)
        if self._sent and _project(self._led_to) is None:
            raise closing(NOT_ROUTED)

    def check(self, stream: str, *, first: bool) -> None:
        """Refuse a stream that the header does not lead to; a later one need only be of the same project."""
        if not self._sent:
            return
        led_astray = first and self._stream and _default_in_short(self._stream) != _default_in_short(stream)
        if led_astray or _project(stream) != _project(self._led_to):
            raise closing(f"The routing header is for {self._led_to}, the request for another stream. Entity: {stream}")


def check_routing(metadata: Metadata, field: str, resource: str) -> None:
    """Refuse a call whose header names another resource, in the request's own ``field``, than the one it is for."""
    parameters = _parameters(metadata)
    if not parameters:
        return
    led_to = parameters.get(field, "")
    if _project(led_to) is None:
        raise closing(NOT_ROUTED)
    if led_to != resource:
        raise closing(f"The routing header is for {led_to}, the request for another resource. Entity: {resource}")


def _parameters(metadata: Metadata) -> Mapping[str, str]:
    sent = [value for name, value in metadata if name == _HEADER and isinstance(value, str)]
    pairs = (part.partition("=")[::2] for value in sent for part in value.split("&"))  # Google's client sends it twice
    return {name: unquote(value) for name, value in pairs}


def _project(path: str) -> str | None:
    match = _PROJECT.fullmatch(path)
    return match[1] if match else None


def _default_in_short(stream: str) -> str:
    return stream.removesuffix("/streams/_default").removesuffix("/_default")
