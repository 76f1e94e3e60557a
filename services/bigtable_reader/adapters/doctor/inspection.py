"""What can be known before the first change is read: a stream that is kept, readable, and routed to one cluster.

Every check runs, whatever the others find, and each finding comes with its fix. Nothing is changed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import grpc

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog, Profile, TableInspection, enabling
from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream, single_cluster
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.schema.seen import ANY, require_the_same_cluster
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import nearest
from shared.pubsub.errors import status_of
from shared.runtime.findings import Finding, Level

COSTS: Final = (
    "an enabled change stream costs about 10 % more CPU before anything is read, reading it 20 to 30 % more, and "
    "reading rows back (mode mirror or both) one point read for each changed row on top: add nodes, or raise the limit "
    "of autoscaling. Its records are billed as storage in each cluster of the table (not counted in storage "
    "utilisation): a day of them takes about 1.5 times what is written in a day, so retention drives the bill; the "
    "partition table is billed too. Reading from another region costs traffic: run the reader in the region of the "
    "profile's cluster. Avoid DropRowRange: it takes long, costs CPU, and each row of it is a record here. Bigtable's "
    "monitoring page has a metric of change streams' CPU and one of their storage"
)
"""What enabling and reading a stream costs, as its documentation says ("Change streams overview": costs)."""

_ENOUGH: Final = timedelta(days=3)
"""A weekend, and a day to notice."""
_BOOSTED: Final = (
    "it is one of Data Boost, which serves no change streams, takes no writes and no transactions on single rows, and "
    "may not show what was written in the last 35 minutes: a row that is read has to be as new as its records"
)
"""As its documentation says ("Bigtable Data Boost overview": limitations, consistency tokens)."""
_AGAIN: Final = "check the network and BIGTABLE_EMULATOR_HOST, which is for emulators only; then ask again"
_NO_SUCH_ROW: Final = b"\0millrace"

T = TypeVar("T")

_NOT_THERE: Final = grpc.StatusCode.NOT_FOUND.name


async def inspect(
    channels: BigtableChannels,
    table: Table,
    partition_table: Table,
    options: BigtableOptions,
    *,
    reads_rows: bool,
    retried: bool = False,
) -> AsyncIterator[Finding]:
    """Inspect the watched table, its stream, both app profiles and our rights; ``reads_rows``: there is a mirror.

    TransientError only if all of it is ``retried``; else what does not answer is a finding.
    """
    asked = _asked_once if retried else _asked
    catalog = BigtableCatalog(channels, table)
    inspection, failed = await asked(f"table {table.id}", catalog.inspect, _may_inspect(table))
    if failed is not None and not ("app profile" in failed.detail and _NOT_THERE in failed.detail):
        yield failed  # else the check of the app profile says it
    if inspection is not None:
        for one in inspect_table(table, inspection, options):
            yield one
        if reads_rows and (clash := _columns(table, inspection, options)) is not None:
            yield clash
    gone: list[tuple[str, str]] = []
    for each, what, transactional in (
        (table, "app profile", False),
        (partition_table, "app profile of the partition table", True),
    ):
        if (_instance(each), each.app_profile) in gone:
            continue  # one cause is one finding
        check = f"{what} {each.app_profile or 'default'}"
        found, failed = await asked(
            check, partial(_profile, channels, each, check, transactional=transactional), _AGAIN
        )
        if (judged := found or failed) is not None:
            yield judged
            if judged.level is Level.ERROR and _NOT_THERE in judged.detail:
                gone.append((_instance(each), each.app_profile))
    if (_instance(table), table.app_profile) in gone:
        return  # whatever is asked by that profile has the same answer
    stream = BigtableChangeStream(channels, table)
    partitions, failed = await asked("change stream", stream.initial_partitions, _AGAIN)
    yield failed or Finding.ok("change stream", f"answers; {len(partitions or ())} partitions")
    if reads_rows:
        rows = BigtableRows(channels, table)
        _none, failed = await asked(
            "rows", lambda: rows.read([_NO_SUCH_ROW]), f"grant this identity roles/bigtable.reader on table {table.id}"
        )
        yield failed or Finding.ok("rows", "can be read back")
    yield Finding.ok("costs", COSTS)


async def inspect_cluster(channels: BigtableChannels, table: Table, rows: PartitionRows) -> Finding | None:
    """Compare the cluster that the app profile routes to with the one that the positions are of; None: of none yet.

    Every start does so too, and refuses another.
    """
    check = f"cluster of app profile {table.app_profile or 'default'}"
    try:
        seen = await rows.seen()
    except MisconfiguredError as error:
        if status_of(error.__cause__)[0] is grpc.StatusCode.NOT_FOUND:
            return None
        fix = f"grant this identity roles/bigtable.user on table {rows.table.id}"
        return Finding.error(check, f"the positions cannot be read: {error.message}", fix)
    except TransientError as error:
        return Finding.error(check, f"the positions cannot be read: {error}", _AGAIN)
    if seen is None or seen.routed_to is None:
        return None
    try:
        found = (await BigtableCatalog(channels, table).profile()).cluster or ANY
    except (MisconfiguredError, TransientError):  # `inspect` says why
        return Finding.warning(
            check,
            f"the positions are of cluster {seen.routed_to}, and where the app profile routes to now is not known",
            f"make sure that it routes there, or grant roles/bigtable.viewer on instance {_instance(table)}",
        )
    try:
        require_the_same_cluster(seen.routed_to, found)
    except MisconfiguredError as error:
        detail, _stop, fix = error.message.partition(". ")
        return Finding.error(check, detail, fix)
    return Finding.ok(check, f"{found}, which the positions are of")


def inspect_table(table: Table, inspection: TableInspection, options: BigtableOptions) -> Iterator[Finding]:
    """Inspect what the admin API says of the watched table, and whether the tables file fits to it."""
    what = f"table {table.id}"
    if inspection.retention is None:
        yield Finding.error(f"{what}: change stream", "it has none", enabling(table))
    elif inspection.retention < _ENOUGH:
        yield Finding.warning(
            f"{what}: retention",
            f"{inspection.retention}: a reader that is down for longer loses the changes in between",
            enabling(table),
        )
    else:
        yield Finding.ok(f"{what}: retention", str(inspection.retention))
    watched = Watched(options)
    read = sorted(family for family in inspection.families if watched.family(family))
    if read:
        yield Finding.ok(f"{what}: families", ", ".join(read))
    else:
        yield Finding.error(
            f"{what}: families",
            f"none of its {len(inspection.families)} families is watched: no row would ever be there",
            "create a family, or see families and excluded_families in the tables file",
        )
    for name in sorted({column.family for column in options.columns}):
        if name not in inspection.families:
            yield Finding.warning(
                f"{what}: families",
                f"the tables file has a column of family {name}, which the table has not",
                f"the nearest one is {nearest(name, inspection.families)}; names are compared letter by letter",
            )


def _columns(table: Table, inspection: TableInspection, options: BigtableOptions) -> Finding | None:
    """Return that two families, or a family and a declared column, would be one column of the mirror."""
    watched = Watched(options)
    try:
        ImageMaker(source="", table=table.id, options=options, families=inspection.families, buckets=1, watched=watched)
    except MisconfiguredError as error:
        detail, _newline, fix = error.message.partition("\n")
        return Finding.error(f"table {table.id}: columns", detail, fix)
    return None


def require_no_error(findings: Collection[Finding]) -> None:
    """Raise MisconfiguredError with every error and its fix."""
    errors = [found for found in findings if found.level is Level.ERROR]
    if errors:
        raise MisconfiguredError(
            "bigtable-table-unfit", "\n".join(f"{found.check}: {found.detail}\n-> {found.fix}" for found in errors)
        )


async def _profile(channels: BigtableChannels, table: Table, check: str, *, transactional: bool) -> Finding:
    try:
        found = await BigtableCatalog(channels, table).profile()
    except MisconfiguredError as error:
        return _not_seen(table, check, error, transactional=transactional)
    return _judged(table, check, found, transactional=transactional)


def _not_seen(table: Table, check: str, error: MisconfiguredError, *, transactional: bool) -> Finding:
    code = status_of(error.__cause__)[0]
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Finding.ok(check, "not known here: an emulator has none")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return Finding.warning(
            check,
            "this identity may not inspect it: whether it routes to one cluster shows at the first call, and no "
            "error is reported when it routes to another",
            f"grant roles/bigtable.viewer on instance {_instance(table)}, or make sure of it",
        )
    return Finding.error(check, error.message, single_cluster(table, transactional=transactional))


def _judged(table: Table, check: str, profile: Profile, *, transactional: bool) -> Finding:
    fix = single_cluster(table, transactional=transactional)
    if profile.cluster is None:
        return Finding.error(
            check,
            "it may route to any cluster: change streams are read through one, and a row that is read back has to "
            "come from where its record came from",
            fix,
        )
    if profile.data_boost:
        return Finding.error(check, _BOOSTED, _standard(table, profile.cluster, transactional=transactional))
    if transactional and not profile.transactional:
        return Finding.error(check, "it does not allow transactions on single rows, by which readers keep apart", fix)
    return Finding.ok(check, f"routes to cluster {profile.cluster}")


def _standard(table: Table, cluster: str, *, transactional: bool) -> str:
    """Return how an app profile is made that reads by the nodes of a cluster."""
    how = f"--instance={_instance(table)} --route-to={cluster}{' --transactional-writes' if transactional else ''}"
    return (
        f"gcloud bigtable app-profiles create NAME {how} --description=millrace, and name it; or, where nothing else "
        f"reads by this one, gcloud bigtable app-profiles update {table.app_profile or 'default'} {how} --standard"
    )


def _instance(table: Table) -> str:
    return table.instance.rpartition("/")[2]


def _may_inspect(table: Table) -> str:
    return (
        f"create it, or name another; this identity needs bigtable.tables.get on it (roles/bigtable.reader), and the "
        f"instance is {table.instance}; {_AGAIN}"
    )


async def _asked(what: str, call: Callable[[], Awaitable[T]], fix: str) -> tuple[T | None, Finding | None]:
    """Return the answer, or the finding that there is none."""
    try:
        return await _asked_once(what, call, fix)
    except TransientError as error:
        return None, Finding.error(what, str(error), _AGAIN)


async def _asked_once(what: str, call: Callable[[], Awaitable[T]], fix: str) -> tuple[T | None, Finding | None]:
    """Return the answer, or the finding that someone has to act. TransientError."""
    try:
        return await call(), None
    except MisconfiguredError as error:
        detail, _newline, in_error = error.message.partition("\n")
        return None, Finding.error(what, detail, in_error or fix)
