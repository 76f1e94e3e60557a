"""What a `doctor` says of a change stream and of the rights in a database, each with its fix.

The start checks (`catalog.py`) refuse what is an error here, and stop at the first.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from services.spanner_reader.adapters.schema.catalog import EXCLUDING, TXN_EXCLUSION, StreamDefinition, whole_rows
from services.spanner_reader.adapters.spanner.connection import SpannerDatabaseClient
from services.spanner_reader.adapters.spanner.dialects import quoted, stream_options
from shared.runtime.findings import Finding

_A_WEEK: Final = "retention_period = '7d'"
_READS: Final = (
    "spanner.sessions.create",
    "spanner.databases.select",
    "spanner.databases.read",
    "spanner.databases.beginReadOnlyTransaction",
)
_WRITES: Final = (*_READS, "spanner.databases.beginOrRollbackReadWriteTransaction", "spanner.databases.write")
_BY_ROLE: Final = ("spanner.databases.useRoleBasedAccess",)
"""What the role may do is no permission of IAM: the other checks find out by asking."""
_CHANGES: Final = "spanner.databases.updateDdl"
_ENOUGH: Final = timedelta(days=3)
"""A weekend, and a day to notice."""


def inspect_stream(name: str, definition: StreamDefinition, sampled: str = "") -> Iterator[Finding]:
    """Inspect every option of a change stream; ``sampled`` is what completing its updates costs."""
    what, dialect = f"stream {name}", definition.dialect
    alter = f"ALTER CHANGE STREAM {quoted(dialect, name)} "
    watching = "everything" if definition.watches_everything else "the tables it names"
    yield Finding.ok(what, f"is there and watches {watching}")
    captured, alter_capture = definition.value_capture_type, whole_rows(name, definition)
    if alter_capture is None:
        yield Finding.ok(f"{what}: capture type", captured)
    else:
        yield Finding.warning(
            f"{what}: capture type",
            f"{captured}: updates carry only what changed, so the reader reads their rows, at low priority"
            + (f"\n{sampled}" if sampled else ""),
            alter_capture,
        )
    excluding = sorted(definition.exclusions & set(EXCLUDING))
    if excluding:
        off = stream_options(dialect, ", ".join(f"{each} = false" for each in excluding))
        yield Finding.error(
            f"{what}: exclusions",
            f"{', '.join(excluding)}: what is left out never reaches BigQuery",
            f"{alter}{off}\nand start after that statement",
        )
    elif TXN_EXCLUSION in definition.exclusions:
        yield Finding.warning(
            f"{what}: exclusions",
            f"{TXN_EXCLUSION}: transactions that ask to be left out never reach BigQuery",
            f"{alter}{stream_options(dialect, f'{TXN_EXCLUSION} = false')}",
        )
    else:
        yield Finding.ok(f"{what}: exclusions", "none")
    if definition.partition_mode == "IMMUTABLE_KEY_RANGE":
        yield Finding.ok(f"{what}: partition mode", definition.partition_mode)
    else:
        yield Finding.error(
            f"{what}: partition mode",
            f"{definition.partition_mode}, which this version does not read",
            "it cannot be altered: create another stream without that option, and name it in CHANGE_STREAM",
        )
    yield _retention(what, alter, definition)


async def inspect_rights(database: SpannerDatabaseClient, *, writes: bool, makes_tables: bool) -> Finding:
    """Check whether this identity may do what the reader does in a database."""
    what = f"rights on {database.name.rpartition('/')[2]}"
    role = database.options.role
    wanted = [*(_BY_ROLE if role else _WRITES if writes else _READS), *([_CHANGES] if makes_tables else [])]
    granted = await database.granted(wanted)
    if granted is None:
        return Finding.ok(what, "not known here: an emulator has no rights")
    missing = [each for each in wanted if each not in granted]
    if not missing:
        return Finding.ok(what, ", ".join(wanted))
    needed = "fineGrainedAccessUser" if role else "databaseUser" if writes or makes_tables else "databaseReader"
    _projects, project, _instances, instance, _databases, name = database.name.split("/")
    return Finding.error(
        what,
        f"this identity lacks {', '.join(missing)}",
        f"gcloud spanner databases add-iam-policy-binding {name} --instance={instance} --project={project} "
        f"--member=IDENTITY --role=roles/spanner.{needed}"
        + (f", and grant it roles/spanner.databaseRoleUser for database role {role}" if role else ""),
    )


def _retention(what: str, alter: str, definition: StreamDefinition) -> Finding:
    longer = f"{alter}{stream_options(definition.dialect, _A_WEEK)}"
    if not definition.retention_is_set:
        return Finding.warning(
            f"{what}: retention",
            "not set: what Spanner then keeps was a day once and is seven days for new streams; a day is counted on",
            longer,
        )
    if definition.retention < _ENOUGH:
        return Finding.warning(
            f"{what}: retention",
            f"{definition.retention}: a reader that is down for longer loses the changes in between",
            longer,
        )
    return Finding.ok(f"{what}: retention", str(definition.retention))
