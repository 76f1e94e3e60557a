"""The gRPC server: Bigtable's data and admin API and the control calls on one port, the real emulator behind it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import grpc
import structlog

from emulators.bigtable_streams.control import AdvancingClock, Control, Served
from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.faults import Faults
from emulators.bigtable_streams.garbage import Garbage
from emulators.bigtable_streams.handlers import Handlers
from emulators.bigtable_streams.instance_admin import InstanceAdmin
from emulators.bigtable_streams.profiles import Profiles
from emulators.bigtable_streams.protocol import DATA, INSTANCES, TABLES
from emulators.bigtable_streams.reading import Reading
from emulators.bigtable_streams.replication import Replication
from emulators.bigtable_streams.serving import Streams
from emulators.bigtable_streams.table_admin import TableAdmin
from emulators.bigtable_streams.tables import Tables
from emulators.bigtable_streams.writes import Writes

HOST: Final = "127.0.0.1"
_GRACE_SECONDS: Final = 0.5
_OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
log = structlog.get_logger()


@dataclass(frozen=True)
class Ports:
    """Where the server listens."""

    port: int


@asynccontextmanager
async def serving(
    port: int, emulator_address: str, garbage_every: timedelta | None = None, host: str = HOST
) -> AsyncIterator[Ports]:
    """Serve inside the block; a port of 0 means a free one. Garbage is collected that often, or when asked to only."""
    emulator, clock = Emulator(emulator_address), AdvancingClock()
    tables, garbage = Tables(emulator, clock.now), Garbage(emulator, clock.now)
    handlers = _handlers(emulator, clock, tables, garbage)
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((handlers,))
    bound = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    collecting = None if garbage_every is None else asyncio.create_task(_collecting(tables, garbage, garbage_every))
    try:
        yield Ports(bound)
    finally:
        if collecting is not None:
            collecting.cancel()
            with suppress(asyncio.CancelledError):
                await collecting
        await server.stop(_GRACE_SECONDS)
        await handlers.settle()
        await emulator.close()


async def _collecting(tables: Tables, garbage: Garbage, every: timedelta) -> None:
    while True:
        await asyncio.sleep(every.total_seconds())
        for table in tables.all():
            try:
                await garbage.collect(table)
            except grpc.aio.AioRpcError as error:  # the table may have been dropped meanwhile: the next round shows it
                log.warning("garbage_not_collected", table=table.name, error=error.details())


def _handlers(emulator: Emulator, clock: AdvancingClock, tables: Tables, garbage: Garbage) -> Handlers:
    profiles, streams, faults = Profiles(), Streams(), Faults()
    reading = Reading(tables, profiles, streams, clock.now)
    writes = Writes(emulator, tables, profiles, clock.now)
    admin = TableAdmin(emulator, tables, profiles, clock.now)
    instances = InstanceAdmin(profiles)
    served = Served(tables, profiles, streams)
    control = Control(served, faults, clock, garbage, Replication(emulator, clock.now))
    return Handlers(
        emulator,
        faults,
        profiles,
        unary={
            f"{DATA}MutateRow": writes.mutate_row,
            f"{DATA}CheckAndMutateRow": writes.check_and_mutate_row,
            f"{DATA}ReadModifyWriteRow": writes.read_modify_write_row,
            f"{TABLES}CreateTable": admin.create_table,
            f"{TABLES}GetTable": admin.get_table,
            f"{TABLES}ListTables": admin.list_tables,
            f"{TABLES}UpdateTable": admin.update_table,
            f"{TABLES}DeleteTable": admin.delete_table,
            f"{TABLES}ModifyColumnFamilies": admin.modify_column_families,
            f"{TABLES}DropRowRange": admin.drop_row_range,
            f"{INSTANCES}CreateAppProfile": instances.create_app_profile,
            f"{INSTANCES}GetAppProfile": instances.get_app_profile,
            f"{INSTANCES}ListAppProfiles": instances.list_app_profiles,
            f"{INSTANCES}UpdateAppProfile": instances.update_app_profile,
            f"{INSTANCES}DeleteAppProfile": instances.delete_app_profile,
            f"{INSTANCES}GetInstance": instances.get_instance,
            f"{INSTANCES}ListClusters": instances.list_clusters,
            f"{INSTANCES}GetCluster": instances.get_cluster,
            **control.methods(),
        },
        streaming={
            f"{DATA}GenerateInitialChangeStreamPartitions": reading.initial_partitions,
            f"{DATA}ReadChangeStream": reading.read,
        },
        streaming_once={f"{DATA}MutateRows": writes.mutate_rows},
    )
