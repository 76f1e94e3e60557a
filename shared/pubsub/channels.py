"""gRPC channels to Pub/Sub: plain to an emulator, authenticated to the service, for raw stubs and gapic clients alike.

Raw stubs with the plain protobuf classes are used where messages flow: a message then costs microseconds, not tens of
them. On the service the channel is made by the client library, so Application Default Credentials work as anywhere.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final

import google.auth.exceptions
import grpc
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport, PublisherGrpcTransport

from shared.contracts.errors import TransientError
from shared.pubsub.credentials import unusable_credentials
from shared.runtime.stop import Stop

_SERVICE: Final = "pubsub.googleapis.com:443"
# A pull answers with as much as the service likes: no limit of ours may make an answer unreadable, for ever.
_SENT: Final = ("grpc.max_send_message_length", -1)
_RECEIVED: Final = "grpc.max_receive_message_length"
_OPTIONS: Final = [_SENT, (_RECEIVED, -1)]
_OWN_CONNECTION: Final = ("grpc.use_local_subchannel_pool", 1)  # channels with the same options share one otherwise
_CALLS_PER_CONNECTION: Final = 100
"""A connection to Google's front ends carries so many calls at once; one more waits until another is over."""
# A connection that died without a word is noticed. Not for the emulator, which closes connections for pinging.
_KEEPALIVE: Final = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]


def open_channel(emulator_host: str | None, largest_answer: int | None = None) -> grpc.Channel:
    """Open a channel to the emulator at ``emulator_host``, or to the service where that is None or empty.

    ``largest_answer``: bytes; a caller that asks for less after an answer was refused (RESOURCE_EXHAUSTED) may set it.
    """
    options = _OPTIONS if largest_answer is None else [_SENT, (_RECEIVED, largest_answer)]
    if emulator_host:
        return grpc.insecure_channel(emulator_host, options=options)
    channel: grpc.Channel = _authenticated(PublisherGrpcTransport.create_channel, options)
    return channel


@contextmanager
def stoppable_channel(emulator_host: str | None, stop: Stop) -> Iterator[grpc.Channel]:
    """Open a channel for a block. A stop closes it, which ends the call under way: nothing else interrupts its thread.

    TransientError where the block makes a call after that.
    """
    with open_channel(emulator_host) as channel, stop.calling(channel.close):
        try:
            yield channel
        except ValueError as error:  # a call on a channel that is closed
            if not stop.requested:
                raise
            raise TransientError("asked to stop before Pub/Sub had answered") from error


def open_async_channel(emulator_host: str | None) -> grpc.aio.Channel:
    """Do the same for an event loop."""
    if emulator_host:
        return grpc.aio.insecure_channel(emulator_host, options=[*_OPTIONS, _OWN_CONNECTION])
    options = [*_OPTIONS, _OWN_CONNECTION]
    channel: grpc.aio.Channel = _authenticated(PublisherGrpcAsyncIOTransport.create_channel, options)
    return channel


@asynccontextmanager
async def open_async_channels(emulator_host: str | None, calls: int) -> AsyncIterator[Sequence[grpc.aio.Channel]]:
    """Open as many channels, each a connection of its own, as so many calls at once need."""
    several = -(-calls // _CALLS_PER_CONNECTION)
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(open_async_channel(emulator_host)) for _ in range(several)]


def _authenticated(create_channel: Any, options: Sequence[tuple[str, int]]) -> Any:
    try:
        return create_channel(_SERVICE, options=[*options, *_KEEPALIVE])
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise unusable_credentials(error, "PUBSUB_EMULATOR_HOST") from error
