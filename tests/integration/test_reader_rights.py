"""What a doctor says of rights in a database: asked of a server that has them, for the emulator knows none."""

import asyncio
from collections.abc import Iterator

import pytest

from services.spanner_reader.adapters.doctor.inspection import inspect_rights
from services.spanner_reader.adapters.spanner.connection import CallOptions, SpannerChannels, SpannerDatabaseClient
from shared.runtime.findings import Finding, Level
from tests.integration.iam_server import Rights, serving_rights

pytestmark = pytest.mark.integration

NAME = "projects/p/instances/i/databases/d"
READS = {
    "spanner.sessions.create",
    "spanner.databases.select",
    "spanner.databases.read",
    "spanner.databases.beginReadOnlyTransaction",
}
WRITES = {"spanner.databases.beginOrRollbackReadWriteTransaction", "spanner.databases.write"}
CHANGES = {"spanner.databases.updateDdl"}


def found(rights: Rights, *, writes: bool, makes_tables: bool, role: str | None = None) -> Finding:
    async def ask() -> Finding:
        channels = SpannerChannels(rights.address)
        try:
            database = SpannerDatabaseClient(NAME, channels, options=CallOptions(role=role))
            return await inspect_rights(database, writes=writes, makes_tables=makes_tables)
        finally:
            await channels.close()

    return asyncio.run(ask())


@pytest.fixture
def rights() -> Iterator[Rights]:
    with serving_rights("google.spanner.admin.database.v1.DatabaseAdmin") as served:
        yield served


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
        finding = found(rights, writes=writes, makes_tables=makes_tables)
        assert (finding.level, finding.check) == (Level.ERROR, "rights on d")
        assert finding.detail == f"this identity lacks {missing}"
        assert finding.fix == (
            "gcloud spanner databases add-iam-policy-binding d --instance=i --project=p --member=IDENTITY "
            f"--role=roles/spanner.{role}"
        )

    rights.granted = needed
    assert found(rights, writes=writes, makes_tables=makes_tables).level is Level.OK
    assert rights.asked_of == {NAME}


def test_with_a_database_role_no_more_is_asked_for_than_the_roles_hold_that_the_fix_names(rights: Rights) -> None:
    """Google's list of roles: `spanner.fineGrainedAccessUser` and `spanner.databaseRoleUser` hold these three."""
    rights.granted = {"spanner.databaseRoles.list", "spanner.databases.useRoleBasedAccess", "spanner.databaseRoles.use"}
    assert found(rights, writes=False, makes_tables=False, role="mirror").level is Level.OK

    rights.granted = set()
    finding = found(rights, writes=False, makes_tables=False, role="mirror")
    assert finding.detail == "this identity lacks spanner.databases.useRoleBasedAccess"
    assert "roles/spanner.fineGrainedAccessUser" in finding.fix
