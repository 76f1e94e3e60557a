"""The command `doctor`: inspect everything the reader needs, before it is started or beside it.

Every check runs, whatever the others find, and each finding comes with its fix. Exits 0 if there is no error, else 1.
It takes the reader's own settings and changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Final, TextIO, TypeVar

from services.spanner_reader.adapters.doctor.capture_sample import cost_of_completing
from services.spanner_reader.adapters.doctor.inspection import inspect_rights, inspect_stream
from services.spanner_reader.adapters.doctor.table_inspection import (
    alter_stream_to_leave_out,
    inspect_soft_delete,
    inspect_table,
)
from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.catalog import (
    SpannerCatalog,
    StreamDefinition,
    check_partition_table,
    check_start,
    check_times,
    whole_rows,
)
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient, Statement
from services.spanner_reader.adapters.spanner.dialects import partition_sql, stream_grants
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.core.schema.resync import RESTART_WITH_ALL_ROWS, fix_of
from services.spanner_reader.core.schema.unmatched_sections import unmatched_sections
from services.spanner_reader.core.stream.partitions import low_watermark
from services.spanner_reader.ports import CatalogInspection
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.stores import databases, open_channels, topic_of
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.clock import SystemClock
from shared.runtime.doctor import LOGIN, inspect_keep, inspect_settings, inspect_tables_file, run_doctor
from shared.runtime.findings import Finding, Level

_AGAIN: Final = "check the network and SPANNER_EMULATOR_HOST, which is for emulators only; then ask again"
_SECOND: Final = 1_000_000_000

T = TypeVar("T")


def doctor(environ: Mapping[str, str], out: TextIO, *, as_json: bool) -> int:
    """Inspect everything, print what was found and return the exit code."""
    return run_doctor(_findings(environ), out, as_json=as_json)


def _findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    settings = yield from inspect_settings(Settings, environ, lambda it: f"{it.source} to topic {it.topic}")
    if settings is None:
        return
    file = yield from inspect_tables_file(settings.tables_file, "none: every table is read")
    yield from asyncio.run(_spanner(settings, file))
    yield from topic_of(settings).inspect()


async def _spanner(settings: Settings, file: TablesFile) -> list[Finding]:
    try:
        channels = open_channels(settings)
    except MisconfiguredError as error:
        return [Finding.error("Spanner", str(error), LOGIN)]
    async with channels:
        return await _SpannerInspection(settings, file, channels).everything()


class _SpannerInspection:
    """One inspection of Spanner: the watched database, the stream, its tables, and where progress is kept."""

    def __init__(self, settings: Settings, file: TablesFile, channels: SpannerChannels) -> None:
        self._settings = settings
        self._file = file
        self._found: list[Finding] = []
        self._database, self._partitions = databases(settings, channels)
        self._elsewhere = self._partitions is not self._database
        self._catalog = SpannerCatalog(self._database, settings.change_stream)

    async def everything(self) -> list[Finding]:
        await self._reach(self._database, settings_name="SPANNER_DATABASE", writes=not self._elsewhere)
        definition = await self._ask("stream", self._catalog.definition, _create(self._settings))
        if definition is not None:
            sampled = await self._sampled(definition)
            self._found += inspect_stream(self._settings.change_stream, definition, sampled)
            await self._query()
            inspection = await self._ask("tables", self._catalog.inspect)
            if inspection is not None:
                self._found += self._tables(definition, inspection)
        if self._elsewhere:
            await self._reach(self._partitions, settings_name="PARTITION_DATABASE", writes=True)
        await self._progress(definition)
        await self._clock()
        return self._found

    async def _reach(self, database: SpannerDatabaseClient, *, settings_name: str, writes: bool) -> None:
        name = database.name.rpartition("/")[2]
        create = f"create {database.name}, or name another in {settings_name}"
        if await self._works(f"database {name}", database.learn_dialect, create):
            self._found.append(Finding.ok(f"database {name}", f"answers; {database.dialect.value}"))
            makes_tables = writes and not await _answer(self._store(database).exists)
            rights = await self._ask(
                f"rights on {name}", lambda: inspect_rights(database, writes=writes, makes_tables=makes_tables)
            )
            if rights is not None:
                self._found.append(rights)

    async def _sampled(self, definition: StreamDefinition) -> str:
        """Return what it costs to complete updates; "" where the stream captures whole rows."""
        if whole_rows(self._settings.change_stream, definition) is None:
            return ""
        now = await _answer(self._catalog.now)  # `_clock` reports a failure
        stream = SpannerChangeStream(self._database, self._settings.change_stream)
        return "" if now is None else await cost_of_completing(stream, now)

    async def _query(self) -> None:
        """Try the stream's first query, from now until now: it costs nothing and needs what every query needs."""
        settings = self._settings

        async def first() -> None:
            await self._begin(await self._catalog.now())

        what = f"stream {settings.change_stream}: query"
        grant = "grant this identity roles/spanner.databaseReader"
        if settings.database_role is not None:
            dialect, role = self._database.dialect, settings.database_role
            grant = "; ".join(stream_grants(dialect, settings.change_stream, role))
        if await self._works(what, first, grant):
            self._found.append(Finding.ok(what, "answered"))

    def _tables(self, definition: StreamDefinition, inspection: CatalogInspection) -> Iterator[Finding]:
        settings, leave_out = self._settings, alter_stream_to_leave_out
        try:
            check_partition_table(
                settings.change_stream,
                inspection.watched,
                definition,
                table=settings.partition_table,
                same_database=not self._elsewhere,
            )
        except MisconfiguredError as error:
            yield Finding.error(
                "partition table",
                error.message.partition(": set")[0],
                "create a second database in the instance and set PARTITION_DATABASE to it",
            )
        else:
            yield Finding.ok("partition table", f"{settings.partition_table}, which the stream does not watch")
        watched = [table.name for table in inspection.watched]
        included = [name for name in watched if self._file.included(name)]
        left_out = len(watched) - len(included)
        if included:
            yield Finding.ok("tables", f"{len(included)} watched, {left_out} more left out by the tables file")
        else:
            yield Finding.error(
                "tables",
                f"the stream watches no table that is read ({left_out} left out by the tables file)",
                f"ALTER CHANGE STREAM {settings.change_stream} SET FOR ALL, or the tables' names; and see TABLES_FILE",
            )
        yield from inspect_keep(self._file, included, definition.retention)
        for one in unmatched_sections(self._file, {name: inspection.shapes.tables[name] for name in watched}):
            level = Level.ERROR if one.refused else Level.WARNING
            yield Finding(level, f"tables file: {one.section}", one.why, one.fix)
        for name in included:
            table, options = inspection.shapes.tables[name], self._file.options(name)
            yield from inspect_table(name, table, leave_out(settings.change_stream, definition.dialect), options)
            yield from inspect_soft_delete(name, options, settings.change_stream, definition)

    async def _progress(self, definition: StreamDefinition | None) -> None:
        settings, store = self._settings, self._store(self._partitions)
        there = await self._ask("progress", store.exists)
        if there is None:
            return
        if not there:  # an upgrade that adds a table finds the others, with progress in them
            if await _answer(store.is_empty) is not False:
                await self._start(definition)
            self._found.append(Finding.ok("progress", f"{settings.partition_table} will be made at the first start"))
            return
        if await self._ask("progress: stream", store.is_empty, "give every change stream its own PARTITION_TABLE"):
            await self._start(definition)
        topics = SpannerTopicStore(self._partitions, settings.partition_table)
        await self._works(
            "progress: topic", lambda: topics.check(topic_of(settings).identity), "set TOPIC to the readers' topic"
        )
        if await self._works("progress: transaction", self._transaction):
            detail = "a transaction was begun, and ended without a write"
            self._found.append(Finding.ok("progress: transaction", detail))
        survey = await self._ask("progress", store.survey)
        if survey is not None and definition is not None:
            low = low_watermark((one.watermark for one in survey.unfinished), survey.now)
            behind = timedelta(seconds=(survey.now - low) / _SECOND)
            self._found.append(_position(behind, format_timestamp(low), definition))
        pauses = await self._ask("pauses", SpannerPauseStore(self._partitions, settings.partition_table).read)
        if pauses is not None and pauses.stream is not None:
            since = format_timestamp(pauses.stream.paused_at)
            resume = "`python -m services.spanner_reader resume`, before what the stream keeps is over"
            self._found.append(Finding.warning("progress: pause", f"the stream is paused since {since}", resume))
        remembered = await self._ask("schema", SpannerShapeStore(self._partitions, settings.partition_table).read)
        for request in remembered[1] if remembered else ():
            kinds = ", ".join(sorted({found.kind.value.replace("_", " ") for found in request.findings}))
            since = format_timestamp(request.since)
            fix = fix_of(request, self._database.dialect.quote)
            self._found.append(Finding.warning(f"table {request.table}", f"pending resync since {since}: {kinds}", fix))

    async def _start(self, definition: StreamDefinition | None) -> None:
        """Report START_TIMESTAMP or END_TIMESTAMP if the first start would be refused for it."""
        wanted, end = self._settings.start_timestamp, self._settings.end_timestamp
        if definition is None or (wanted is None and end is None):
            return

        async def allowed() -> None:
            now = await self._catalog.now()
            start = now if wanted is None else wanted
            check_times(definition, start=start, end=end, now=now)
            await self._begin(start)

        fix = "correct START_TIMESTAMP, or unset it to begin now; END_TIMESTAMP, if it is set, comes after it"
        await self._works("progress: start", allowed, fix)

    async def _begin(self, start: Nanoseconds) -> None:
        """Make the stream's first query, which ends where it begins."""
        stream = SpannerChangeStream(self._database, self._settings.change_stream)
        async with asyncio.timeout(30):
            await check_start(stream, start, start, self._settings.heartbeat_interval)

    async def _transaction(self) -> None:
        sql = partition_sql(self._partitions.dialect, self._settings.partition_table)
        await self._partitions.read_then_write(Statement(sql["streams"]), lambda _rows: (None, []))

    async def _clock(self) -> None:
        now = await self._ask("clock", self._catalog.now)
        if now is not None:
            apart = abs(SystemClock().now() - now) / _SECOND
            detail = f"{apart:.1f} s from Spanner's; nothing relies on it, all time is Spanner's"
            self._found.append(Finding.ok("clock", detail))

    async def _ask(self, what: str, call: Callable[[], Awaitable[T]], fix: str = _AGAIN) -> T | None:
        """Return the answer; where there is none, that is found: ``fix`` is for what Spanner refuses."""
        try:
            return await call()
        except MisconfiguredError as error:
            self._found.append(Finding.error(what, str(error), fix))
        except (TransientError, TimeoutError) as error:
            self._found.append(Finding.error(what, str(error) or type(error).__name__, _AGAIN))
        return None

    async def _works(self, what: str, call: Callable[[], Awaitable[object]], fix: str = _AGAIN) -> bool:
        """Return whether a call ends without an error; where it does not, that is found."""

        async def ended() -> bool:
            await call()
            return True

        return bool(await self._ask(what, ended, fix))

    def _store(self, database: SpannerDatabaseClient) -> SpannerPartitionStore:
        settings = self._settings
        return SpannerPartitionStore(
            database,
            settings.partition_table,
            change_stream=settings.source,
            owner="doctor",
            lease=settings.lease_duration,
        )


def _position(behind: timedelta, reached: str, definition: StreamDefinition) -> Finding:
    left = definition.retention - behind
    detail = f"everything up to {reached} is published; what comes next is kept for {left} more"
    if left < timedelta(0):
        return Finding.error(
            "progress: retention",
            f"{reached} is older than the {definition.retention} that the stream keeps: what lies between is lost",
            RESTART_WITH_ALL_ROWS,
        )
    if left < definition.retention / 2:
        return Finding.warning(
            "progress: retention", detail, "start readers, or find out what holds them up (their log)"
        )
    return Finding.ok("progress: retention", detail)


async def _answer(call: Callable[[], Awaitable[T]]) -> T | None:
    """Return the answer, or None where there is none."""
    try:
        return await call()
    except (MisconfiguredError, TransientError, TimeoutError):
        return None


def _create(settings: Settings) -> str:
    return (
        f"CREATE CHANGE STREAM {settings.change_stream} FOR ALL with value_capture_type = 'NEW_ROW' and "
        "retention_period = '7d', or name one that is there in CHANGE_STREAM"
    )
