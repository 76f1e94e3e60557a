"""The start checks against the front: what is found, and the fix of what is not as it should be."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.doctor.inspection import COSTS, inspect, require_no_error
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.core.schema.seen import InspectedTable
from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.findings import Finding, Level
from tests.integration.bigtable_front import CLUSTER, INSTANCE, Front, FrontTable
from tests.worlds.doctor_checks import unexplained

pytestmark = pytest.mark.integration


def looked_at(
    table: FrontTable,
    options: BigtableOptions | None = None,
    *,
    profile: str = "",
    partition_profile: str = "",
    reads_rows: bool = True,
    retried: bool = False,
) -> list[Finding]:
    async def looking() -> list[Finding]:
        channels = BigtableChannels(table.front.address)
        try:
            watched = Table(INSTANCE, table.name.rpartition("/")[2], profile)
            kept = Table(INSTANCE, "millrace_partitions", partition_profile)
            found = inspect(
                channels, watched, kept, options or BigtableOptions(), reads_rows=reads_rows, retried=retried
            )
            return [one async for one in found]
        finally:
            await channels.close()

    return asyncio.run(looking())


def wrong(findings: list[Finding]) -> list[tuple[Level, str, str]]:
    return [(one.level, one.detail, one.fix) for one in findings if one.level is not Level.OK]


def test_what_is_as_it_should_be_is_reported_and_what_it_costs(front: Front) -> None:
    found = looked_at(front.table("f", "g", retention=timedelta(days=7)))

    assert wrong(found) == []
    assert unexplained(one.check for one in found) == []
    require_no_error(found)
    details = [one.detail for one in found]
    assert details == [
        "7 days, 0:00:00",
        "f, g",
        f"routes to cluster {CLUSTER}",
        f"routes to cluster {CLUSTER}",
        "answers; 1 partitions",
        "can be read back",
        COSTS,
    ]
    for figure in ("10 %", "20 to 30 %", "1.5 times", "DropRowRange", "region"):
        assert figure in COSTS


def test_a_short_retention_is_a_warning(front: Front) -> None:
    ((level, detail, fix),) = wrong(looked_at(front.table("f", retention=timedelta(days=1))))

    assert (level, detail.partition(":")[0]) == (Level.WARNING, "1 day, 0")
    assert "--change-stream-retention-period=7d" in fix


def test_a_table_without_a_stream_is_an_error_that_names_the_command(front: Front) -> None:
    table = front.table("f", retention=None)

    with pytest.raises(MisconfiguredError, match="gcloud bigtable instances tables update") as raised:
        require_no_error(looked_at(table))
    assert "it has none" in str(raised.value)
    assert table.name.rpartition("/")[2] in str(raised.value)


def test_a_missing_table_is_an_error_and_everything_else_is_still_inspected(front: Front) -> None:
    found = looked_at(FrontTable(front, f"{INSTANCE}/tables/nowhere"))

    assert [one.check for one in found] == [
        "table nowhere",
        "app profile default",
        "app profile of the partition table default",
        "change stream",
        "rows",
        "costs",
    ]
    assert [one.check for one in found if one.level is Level.ERROR] == ["table nowhere", "change stream", "rows"]


def test_profiles_that_route_anywhere_or_allow_no_transactions_are_errors(front: Front) -> None:
    table = front.table("f", retention=timedelta(days=7))
    any_cluster = front.app_profile(multi_cluster_routing_use_any={})
    one_cluster = front.app_profile(transactional=False)

    anywhere = wrong(looked_at(table, profile=any_cluster))
    plain = wrong(looked_at(table, profile=one_cluster, partition_profile=one_cluster))
    missing = wrong(looked_at(table, profile="nobody", partition_profile="nobody"))

    assert "may route to any cluster" in anywhere[0][1]
    assert f"app-profiles create {any_cluster}" in anywhere[0][2]
    assert [(level, detail.partition(",")[0]) for level, detail, _fix in plain] == [
        (Level.ERROR, "it does not allow transactions on single rows")
    ]
    assert "--transactional-writes" in plain[0][2]
    ((level, detail, fix),) = missing  # one cause, one finding
    assert level is Level.ERROR
    assert "nobody" in detail
    assert "Is APP_PROFILE right" in detail
    assert "gcloud bigtable app-profiles create nobody" in fix


def test_a_profile_of_data_boost_is_an_error_of_the_stream_and_of_the_partition_table(front: Front) -> None:
    table = front.table("f", retention=timedelta(days=7))
    profile = front.app_profile(
        single_cluster_routing={"cluster_id": CLUSTER, "allow_transactional_writes": True},
        data_boost_isolation_read_only={"compute_billing_owner": "HOST_PAYS"},
    )
    found = looked_at(table, profile=profile, partition_profile=profile)

    assert [(level, "35 minutes" in detail) for level, detail, _fix in wrong(found)] == [(Level.ERROR, True)] * 2
    of_stream, of_partitions = (fix for _level, _detail, fix in wrong(found))
    assert f"update {profile} --instance={INSTANCE.rpartition('/')[2]} --route-to={CLUSTER} --standard" in of_stream
    assert f"--route-to={CLUSTER} --transactional-writes --standard" in of_partitions
    with pytest.raises(MisconfiguredError, match="change streams"):
        require_no_error(found)


def test_a_tables_file_that_watches_nothing_or_names_no_family_is_reported(front: Front) -> None:
    table = front.table("weather", retention=timedelta(days=7))
    column = CellColumn(name="c", family="wether", qualifier=b"q")

    nothing = wrong(looked_at(table, BigtableOptions(families=("x*",))))
    misspelt = wrong(looked_at(table, BigtableOptions(columns=(column,))))

    assert [level for level, _detail, _fix in nothing] == [Level.ERROR]
    assert "none of its 1 families is watched" in nothing[0][1]
    assert [(level, fix.partition(";")[0]) for level, _detail, fix in misspelt] == [
        (Level.WARNING, "the nearest one is weather")
    ]


def test_a_log_alone_needs_no_right_to_read_rows(front: Front) -> None:
    checks = [one.check for one in looked_at(front.table("f"), reads_rows=False)]

    assert "rows" not in checks


def test_a_service_that_does_not_answer_is_a_finding_unless_the_inspection_is_retried(front: Front) -> None:
    table = front.table("f", retention=timedelta(days=7))
    with front.failing("GetAppProfile", status="UNAVAILABLE"):
        found = looked_at(table)
        with pytest.raises(TransientError, match="UNAVAILABLE"):
            looked_at(table, retried=True)

    assert [(one.level, one.check) for one in found if one.level is not Level.OK] == [
        (Level.ERROR, "app profile default"),
        (Level.ERROR, "app profile of the partition table default"),
    ]
    assert wrong(looked_at(table, retried=True)) == []


def test_an_application_profile_without_read_permission_is_a_warning(front: Front) -> None:
    table = front.table("f", retention=timedelta(days=7))
    with front.failing("GetAppProfile", status="PERMISSION_DENIED"):
        found = wrong(looked_at(table))

    assert [level for level, _detail, _fix in found] == [Level.WARNING] * 2
    assert "roles/bigtable.viewer" in found[0][2]


def test_rights_that_are_missing_name_the_role(front: Front) -> None:
    table = front.table("f", retention=timedelta(days=7))
    methods = ("GetTable", "GenerateInitialChangeStreamPartitions", "ReadRows")
    with front.failing(*methods, status="PERMISSION_DENIED", containing=table.name.encode()):
        found = wrong(looked_at(table))

    assert [level for level, _detail, _fix in found] == [Level.ERROR] * 3
    assert all("roles/bigtable.reader" in fix for _level, _detail, fix in found)


def test_families_that_map_to_one_column_are_reported_with_the_fix(front: Front) -> None:
    table = front.table("cf", "CF", retention=timedelta(days=7))

    (clash,) = wrong(looked_at(table))

    assert clash[0] is Level.ERROR
    assert "column family CF and column family cf would be one column" in clash[1]
    assert 'family = "cf"' in clash[2]
    assert wrong(looked_at(table, reads_rows=False)) == []  # a change log names families in its rows
    assert wrong(looked_at(table, BigtableOptions(columns=(FamilyColumn(name="cf_2", family="cf"),)))) == []
    assert wrong(looked_at(table, BigtableOptions(excluded_families=("cf",)))) == []


def test_the_catalog_sees_what_comes_and_goes_and_the_end_of_the_stream(front: Front) -> None:
    table = front.table("f", "g", retention=timedelta(days=2))

    async def seen(*, twice: bool = False) -> InspectedTable:
        channels = BigtableChannels(front.address)
        catalog = BigtableCatalog(channels, Table(INSTANCE, table.name.rpartition("/")[2]))
        try:
            if twice:
                await catalog.seen()
            return await catalog.seen()
        finally:
            await channels.close()

    first = asyncio.run(seen())
    assert first == InspectedTable(frozenset({"f", "g"}), first.clusters, 2 * 86_400.0, CLUSTER)
    table.modify({"id": "g", "drop": True}, {"id": "h", "create": {}})
    table.retain(timedelta(days=1))
    with front.failing("GetAppProfile", status="PERMISSION_DENIED"), capture_logs() as logs:
        unseen = asyncio.run(seen(twice=True))
    assert unseen == replace(first, families=frozenset({"f", "h"}), retention=86_400, routed_to=None)
    assert [line["log_level"] for line in logs if line["event"] == "app_profile_not_seen"] == ["warning", "debug"]
    table.retain(None)
    with pytest.raises(MisconfiguredError, match="no longer has a change stream"):
        asyncio.run(seen())
