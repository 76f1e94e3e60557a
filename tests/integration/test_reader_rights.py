"""What a doctor says of rights in a database: asked of a server that has them, for the emulator knows none."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.pubsub_v1.services.subscriber import client as any_client

from services.spanner_reader.adapters.doctor.inspection import inspect_rights
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from shared.runtime.findings import Finding, Level

pytestmark = pytest.mark.integration

_messages: Any = any_client  # the messages of IAM have no types, and come with the clients
iam_policy_pb2 = _messages.iam_policy_pb2
NAME = "projects/p/instances/i/databases/d"
READS = {
    "spanner.sessions.create",
    "spanner.databases.select",
    "spanner.databases.read",
    "spanner.databases.beginReadOnlyTransaction",
}
WRITES = {"spanner.databases.beginOrRollbackReadWriteTransaction", "spanner.databases.write"}
CHANGES = {"spanner.databases.updateDdl"}


class Rights:
    """A server that says who may do what in databases, and nothing else."""

    def __init__(self) -> None:
        self.granted: set[str] = set()
        self.address = ""

    def test(self, request: Any, context: Any) -> Any:
        assert request.resource == NAME
        return iam_policy_pb2.TestIamPermissionsResponse(
            permissions=[one for one in request.permissions if one in self.granted]
        )

    def found(self, *, writes: bool, makes_tables: bool) -> Finding:
        async def ask() -> Finding:
            channels = SpannerChannels(self.address)
            try:
                return await inspect_rights(
                    SpannerDatabaseClient(NAME, channels), writes=writes, makes_tables=makes_tables
                )
            finally:
                await channels.close()

        return asyncio.run(ask())


@pytest.fixture
def rights() -> Iterator[Rights]:
    held = Rights()
    server = grpc.server(ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(
        held.test,
        request_deserializer=iam_policy_pb2.TestIamPermissionsRequest.FromString,
        response_serializer=iam_policy_pb2.TestIamPermissionsResponse.SerializeToString,
    )
    service = "google.spanner.admin.database.v1.DatabaseAdmin"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"TestIamPermissions": method})])
    held.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield held
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("writes", "makes_tables", "needed", "role"),
    [
        (False, False, READS, "databaseReader"),
        (True, False, READS | WRITES, "databaseUser"),
        (True, True, READS | WRITES | CHANGES, "databaseUser"),
    ],
)
def test_each_right_that_is_missing_is_named_with_the_role_that_has_it(
    rights: Rights, writes: bool, makes_tables: bool, needed: set[str], role: str
) -> None:
    for missing in needed:
        rights.granted = (READS | WRITES | CHANGES) - {missing}
        found = rights.found(writes=writes, makes_tables=makes_tables)
        assert (found.level, found.check) == (Level.ERROR, "rights on d")
        assert found.detail == f"this identity lacks {missing}"
        assert found.fix == (
            "gcloud spanner databases add-iam-policy-binding d --instance=i --project=p --member=IDENTITY "
            f"--role=roles/spanner.{role}"
        )

    rights.granted = needed
    assert rights.found(writes=writes, makes_tables=makes_tables).level is Level.OK
