"""The connections to Bigtable, and calls on them with raw protobuf classes.

The raw classes (`Message.pb()`) cost a twelfth of the generated client's own ones for each record of a change stream;
so the calls are made on the channel, and nothing in between retries. What brings many messages is read in a thread
(`shared/streams`): a change stream. What has few, however large, is awaited in the event loop: a thread of its own for
each reading of rows costs more than twice as much as the reading does there (0.9 ms of CPU and 2.1).
"""

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote

import google.auth
import grpc
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcAsyncIOTransport,
)
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcAsyncIOTransport, BigtableGrpcTransport
from google.cloud.bigtable_v2.types import FeatureFlags

from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from shared.reading.byte_budget import ByteBudget
from shared.streams.connections import KEEPALIVE, OPTIONS, Options, StreamConnections

TIMEOUT: Final = 5.0
"""Seconds for one call: less than a lease, and less than the ten seconds in which a service has to stop."""

_DATA: Final = "bigtable.googleapis.com:443"
_ADMIN: Final = "bigtableadmin.googleapis.com:443"
_FEATURES: Final = base64.urlsafe_b64encode(FeatureFlags.serialize(FeatureFlags(last_scanned_row_responses=True)))
"""What the service does for clients that say that they know it: google/bigtable/v2/feature_flags.proto."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, reached through one app profile. ``instance``: `projects/P/instances/I`."""

    instance: str
    id: str
    app_profile: str = ""

    @property
    def name(self) -> str:
        """Return its full name."""
        return f"{self.instance}/tables/{self.id}"

    @property
    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return what goes with every call: by what the service routes it, and what this client knows."""
        routing = f"table_name={quote(self.name, '')}&app_profile_id={self.app_profile}"
        return [("x-goog-request-params", routing), ("bigtable-features", _FEATURES.decode())]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of `google.bigtable.v2.Bigtable`, and the raw classes of its messages."""

    name: str
    request: Any
    response: Any

    @property
    def path(self) -> str:
        """Return what it is called on the wire."""
        return f"/google.bigtable.v2.Bigtable/{self.name}"


class BigtableChannels:
    """The connections that everything here shares; to an emulator if one is named."""

    def __init__(self, emulator_host: str | None, budget: ByteBudget | None = None) -> None:
        """``budget``: of the messages of all change streams that have come and are not handed over."""
        self._emulator_host = emulator_host
        self._credentials = None if emulator_host else _credentials()
        self.silences: Counter[object] = Counter()
        """How often, in a row, what was asked for gave no answer: it outlives those who ask."""
        self.large_row = asyncio.Lock()
        """Owned while one reading holds a row that takes more memory than a reading may."""
        self._data = self._open(BigtableGrpcAsyncIOTransport, _DATA)
        self._admin: grpc.aio.Channel | None = None
        self._streams = StreamConnections(self._open_for_threads, budget)

    @property
    def admin(self) -> grpc.aio.Channel:
        """Return the channel of the admin API (tables and instances), opened when it is first asked for."""
        if self._admin is None:
            self._admin = self._open(BigtableTableAdminGrpcAsyncIOTransport, _ADMIN)
        return self._admin

    async def call(self, method: Method, table: Table, request: Any, *, timeout: float = TIMEOUT) -> Any:  # noqa: ASYNC109  the deadline travels with the call
        """Return the response of a unary method. TransientError, MisconfiguredError."""
        with bigtable_errors(f"{method.name} on {table.name}"):
            ask = self._data.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            return await ask(request, metadata=table.metadata, timeout=timeout)

    async def stream(
        self,
        method: Method,
        table: Table,
        request: Any,
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109  the deadline travels with the call
    ) -> AsyncGenerator[Any, None]:
        """Yield the responses of a streaming method that has few of them. TransientError, MisconfiguredError.

        Closing the generator ends the call.
        """
        with bigtable_errors(f"{method.name} on {table.name}"):
            ask = self._data.unary_stream(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            call = ask(request, metadata=table.metadata, timeout=timeout)
            try:
                async for response in call:
                    yield response
            finally:
                call.cancel()

    async def portions(
        self,
        method: Method,
        table: Table,
        request: Any,
        *,
        timeout: float | None,  # noqa: ASYNC109  the deadline travels with the call
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the responses of a streaming method as bytes, many at a time. TransientError, MisconfiguredError.

        Closing the generator ends the call. It is made on a connection that has room for one more, for a call without
        a timeout never ends.
        """
        with bigtable_errors(f"{method.name} on {table.name}"):
            async with aclosing(self._streams.portions(method.path, request, table.metadata, timeout)) as found:
                async for portion in found:
                    yield portion

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls on them are cancelled."""
        for channel in [self._data, *([] if self._admin is None else [self._admin])]:
            await channel.close(None)
        self._streams.close()

    def _open(self, transport: Any, address: str) -> grpc.aio.Channel:
        if self._emulator_host:
            return grpc.aio.insecure_channel(self._emulator_host, options=OPTIONS)
        channel: grpc.aio.Channel = self._authenticated(transport, address, OPTIONS + KEEPALIVE)
        return channel

    def _open_for_threads(self, more: Options) -> grpc.Channel:
        if self._emulator_host:
            return grpc.insecure_channel(self._emulator_host, options=[*OPTIONS, *more])
        channel: grpc.Channel = self._authenticated(BigtableGrpcTransport, _DATA, [*OPTIONS, *KEEPALIVE, *more])
        return channel

    def _authenticated(self, transport: Any, address: str, options: Sequence[tuple[str, int]]) -> Any:
        with bigtable_errors("connect to Bigtable"):
            return transport.create_channel(address, credentials=self._credentials, options=options)


def _credentials() -> Any:
    """Return the default credentials: looked up once, in files and by calls that nothing else can run beside."""
    with bigtable_errors("connect to Bigtable"):
        credentials, _project = google.auth.default()
        return credentials
