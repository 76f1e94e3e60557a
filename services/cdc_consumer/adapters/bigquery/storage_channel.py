"""The gRPC channel to BigQuery's Storage Write API: plain to a stand-in, authenticated to the service."""

from typing import Any, Final

import google.auth.exceptions
import grpc
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

from shared.pubsub.credentials import unusable_credentials

_SERVICE: Final = "bigquerystorage.googleapis.com:443"
_OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # two minutes by default: long after the service is back
]


def open_storage_channel(emulator_host: str | None) -> grpc.Channel:
    """Open a channel to what listens at ``emulator_host``, or to the service where that is None or empty."""
    if emulator_host:
        return grpc.insecure_channel(emulator_host, options=_OPTIONS)
    create_channel: Any = BigQueryWriteGrpcTransport.create_channel
    try:
        channel: grpc.Channel = create_channel(_SERVICE, options=_OPTIONS)
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise unusable_credentials(error, "BIGQUERY_STORAGE_EMULATOR_HOST") from error
    return channel
