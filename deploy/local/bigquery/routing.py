"""The header that leads a call to its project's region: ``x-goog-request-params``, a URL's query in one value.

Sources: storage.proto (by which field of a request each method is routed, in its `google.api.http`); for AppendRows,
which carries its stream in the first message only, what Google's own clients send: ``write_stream=`` with the stream's
name or, where a connection serves many tables, ``write_location=projects/p/locations/l`` (java-bigquerystorage,
ConnectionWorker).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

from deploy.local.bigquery.append_errors import closing

Metadata = Iterable[tuple[str, str | bytes]]
_HEADER: Final = "x-goog-request-params"
_PROJECT: Final = re.compile(r"projects/([^/]+)(?:/.*)?")


class AppendRouting:
    """Where the header of one AppendRows call leads; AppendRefusedError where there is none."""

    def __init__(self, metadata: Metadata) -> None:
        parameters = _parameters(metadata)
        self._stream = parameters.get("write_stream", "")
        self._led_to = self._stream or parameters.get("write_location", "")
        if _project(self._led_to) is None:
            raise closing("Cannot route on empty project id ''")

    def check(self, stream: str, *, first: bool) -> None:
        """Refuse a stream that the header does not lead to; a later one need only be of the same project."""
        led_astray = first and self._stream and _default_in_short(self._stream) != _default_in_short(stream)
        if led_astray or _project(stream) != _project(self._led_to):
            raise closing(f"The routing header is for {self._led_to}, the request for another stream. Entity: {stream}")


def check_routing(metadata: Metadata, field: str, resource: str) -> None:
    """Refuse a call whose header does not name the resource, in the request's own ``field``, that it is for."""
    led_to = _parameters(metadata).get(field, "")
    if _project(led_to) is None:
        raise closing("Cannot route on empty project id ''")
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
