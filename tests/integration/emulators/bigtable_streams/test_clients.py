"""Google's own clients work through the front: the sync and async data clients, the admin clients, `cbt`."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.bigtable.data import (
    BigtableDataClient,
    BigtableDataClientAsync,
    ReadRowsQuery,
    RowMutationEntry,
    SetCell,
)
from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup
from google.cloud.bigtable.data.mutations import DeleteAllFromRow
from google.cloud.bigtable.data.read_modify_write_rules import IncrementRule
from google.cloud.bigtable.data.row_filters import PassAllFilter

from deploy.local.platform import emulators
from tests.integration.bigtable_front import INSTANCE, PROJECT, Front, FrontTable

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:Connecting to Bigtable emulator")]

Cbt = Callable[..., str]


@pytest.fixture
def emulator_host(bigtable_front: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable_front)
    return bigtable_front


def names(table: FrontTable) -> tuple[str, str]:
    """Return the ids of a table's instance and of the table."""
    return INSTANCE.rsplit("/", 1)[-1], table.name.rsplit("/", 1)[-1]


def test_the_data_client_writes_and_reads(front: Front, emulator_host: str) -> None:
    made = front.table("f", "g")
    instance, table_id = names(made)
    with BigtableDataClient(project=PROJECT) as client, client.get_table(instance, table_id) as table:
        table.mutate_row(b"a", [SetCell("f", b"q", b"1")])
        table.bulk_mutate_rows([RowMutationEntry(b"b%d" % n, [SetCell("f", b"q", b"2")]) for n in range(3)])
        assert table.check_and_mutate_row(b"a", PassAllFilter(True), true_case_mutations=SetCell("g", b"q", b"3"))
        row = table.read_modify_write_row(b"n", IncrementRule("f", b"count", 5))
        assert int(row[0]) == 5
        table.mutate_row(b"a", DeleteAllFromRow())
        assert [each.row_key for each in table.read_rows(ReadRowsQuery())] == [b"b0", b"b1", b"b2", b"n"]
        with pytest.raises(MutationsExceptionGroup, match="1 failed entry from 2 attempted") as raised:
            table.bulk_mutate_rows(
                [
                    RowMutationEntry(b"c", [SetCell("f", b"q", b"4")]),
                    RowMutationEntry(b"d", [SetCell("unknown", b"q", b"4")]),
                ]
            )
        (failed,) = raised.value.exceptions
        assert isinstance(failed.__cause__, NotFound)
        assert "Requested column family not found" in str(failed.__cause__)

    streamed = [(change.row_key, len(change.chunks)) for change in made.changes()]
    assert streamed == [(b"a", 1), (b"b0", 1), (b"b1", 1), (b"b2", 1), (b"a", 1), (b"n", 1), (b"a", 2), (b"c", 1)]


def test_the_async_data_client_writes_and_reads(front: Front, emulator_host: str) -> None:
    made = front.table("f")
    instance, table_id = names(made)

    async def write_and_read() -> list[bytes]:
        async with BigtableDataClientAsync(project=PROJECT) as client, client.get_table(instance, table_id) as table:
            async with table.mutations_batcher() as batcher:
                for n in range(20):
                    await batcher.append(RowMutationEntry(b"r%02d" % n, [SetCell("f", b"q", b"v")]))
            return [row.row_key for row in await table.read_rows(ReadRowsQuery(limit=5))]

    assert asyncio.run(write_and_read()) == [b"r00", b"r01", b"r02", b"r03", b"r04"]
    assert len(made.changes()) == 20


def test_a_profile_that_is_not_there_is_refused_to_readers_too(front: Front, emulator_host: str) -> None:
    instance, table_id = names(front.table("f"))
    with (
        BigtableDataClient(project=PROJECT) as client,
        client.get_table(instance, table_id, app_profile_id="unheard-of") as table,
        pytest.raises(NotFound, match="unheard-of"),
    ):
        table.read_rows(ReadRowsQuery())


def test_rules_of_garbage_collection_are_shown_as_they_were_given(front: Front) -> None:
    made = front.table("f", "g", rules={"f": {"max_num_versions": 3}})
    change = {"id": "g", "update": {"gc_rule": {"max_age": {"seconds": 60}}}}
    made.modify(change, {"id": "h", "create": {}}, {"id": "f", "drop": True})

    families = front.tables.get_table(name=made.name).column_families

    assert {name: family.gc_rule.max_age.seconds for name, family in families.items()} == {"g": 60, "h": 0}


def test_instances_clusters_and_profiles_are_there_for_an_inspection(front: Front) -> None:
    instance = f"projects/{PROJECT}/instances/inspected"
    assert front.instances.get_instance(name=instance).state.name == "READY"
    (cluster,) = front.instances.list_clusters(parent=instance).clusters
    assert front.instances.get_cluster(name=cluster.name).state.name == "READY"
    routed = {"cluster_id": "inspected-c1", "allow_transactional_writes": False}
    made = front.instances.create_app_profile(
        {"parent": instance, "app_profile_id": "cdc", "app_profile": {"single_cluster_routing": routed}}
    )
    changed = {"name": made.name, "description": "for the reader"}
    front.instances.update_app_profile({"app_profile": changed, "update_mask": {"paths": ["description"]}}).result(  # type: ignore[no-untyped-call]
        timeout=10
    )
    listed = {each.name.rsplit("/", 1)[-1]: each for each in front.instances.list_app_profiles(parent=instance)}
    assert sorted(listed) == ["cdc", "default"]
    assert listed["cdc"].description == "for the reader"
    assert listed["cdc"].single_cluster_routing.cluster_id == "inspected-c1"
    front.instances.delete_app_profile({"name": made.name, "ignore_warnings": True})
    with pytest.raises(NotFound):
        front.instances.get_app_profile(name=made.name)


@pytest.fixture
def cbt(bigtable_front: str, tmp_path: Path) -> Cbt:
    command = [str(emulators.find_sdk(os.environ) / "bin" / "cbt"), f"-project={PROJECT}", "-instance=front"]
    environment = {**os.environ, "HOME": str(tmp_path), "BIGTABLE_EMULATOR_HOST": bigtable_front}

    def run(*arguments: str) -> str:
        ended = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=60
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


def test_cbt_makes_writes_reads_and_lists(front: Front, cbt: Cbt) -> None:
    made = front.table("f")
    table = made.name.rsplit("/", 1)[-1]
    cbt("createfamily", table, "g")
    cbt("set", table, "row", "f:q=one", "g:r=two")
    assert "one" in cbt("lookup", table, "row")
    assert cbt("count", table).strip() == "1"
    cbt("deleterow", table, "row")
    assert table in cbt("ls")
    assert "front-c1" in cbt("listclusters")
    assert "default" in cbt("listappprofile", "front")

    assert [len(change.chunks) for change in made.changes()] == [2, 2]
