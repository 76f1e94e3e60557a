"""A database in the Spanner emulator with the tables of a reader, for the tests of what is kept in them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore


@asynccontextmanager
async def partition_table(made: SpannerDatabase) -> AsyncIterator[SpannerDatabaseClient]:
    """Make the partition table `p`, and what is made with it, in a database; give a client of that database."""
    channels = SpannerChannels(made.instance.address)
    try:
        client = SpannerDatabaseClient(made.path, channels)
        await client.learn_dialect()
        lease = timedelta(seconds=30)
        await SpannerPartitionStore(client, "p", change_stream="s", owner="o", lease=lease).create_table()
        yield client
    finally:
        await channels.close()
