"""The automatic sweep, put together: what it sweeps with, opened for each sweep, for they are rare."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.bigquery.storage_channel import open_storage_channel
from services.cdc_consumer.adapters.delete_missing_rows.mirror_rows import BigQueryMirrorRows
from services.cdc_consumer.adapters.delete_missing_rows.spooled_rows import spooled
from services.cdc_consumer.adapters.schema.tables import open_client
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.app.delete_missing_rows.automatic_sweep import (
    AutomaticSweep,
    Known,
    check_letters,
    check_part,
)
from services.cdc_consumer.app.delete_missing_rows.sweep import (
    SourceOfMirror,
    SweepRefusedError,
    Swept,
    described,
    shown_time,
    sweep,
)
from services.cdc_consumer.ports import CdcWriter, Mirror, MirrorTable, SourceRows
from services.cdc_consumer.settings import Settings
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import label_of, source_table
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop


@contextmanager
def sweeping(settings: Settings, known: Known, environ: Mapping[str, str], stop: Stop) -> Iterator[None]:
    """Sweep what is due while the block runs, if it is set so."""
    if settings.sweep != "automatic":
        yield
        return
    project, dataset = settings.dataset_project, settings.bigquery_dataset
    client = open_client(project, settings.bigquery_emulator_host)
    rows = BigQueryMirrorRows(client, project, dataset, stop)

    def swept(mirror: MirrorTable, writer: CdcWriter, source: SourceOfMirror | None) -> Swept:
        before, after = mirror.complete_since, settings.sweep_after
        if source is None:
            count = rows.count(mirror, before)
            check_letters(mirror, count, before)
            check_part(mirror.definition.identity, count, before)
        return sweep(
            mirror, rows, writer, source, spooled, stop, SystemClock(), before=before, after=after, execute=True
        )

    def sweep_one(listed: Mirror) -> Swept:
        own_dataset, _dot, name = listed.table.rpartition(".")
        mirror = rows.find(name, own_dataset)
        with (
            open_storage_channel(settings.bigquery_storage_emulator_host) as channel,
            closing(AppendStreams(channel, project, dataset, stop, SystemClock())) as writer,
        ):
            if settings.source_rows is None:
                return swept(mirror, writer, None)
            with opened_source(settings.source_rows, environ, stop) as asked:
                return swept(mirror, writer, source_of(asked, mirror))

    automatic = AutomaticSweep(
        known, sweep_one, SystemClock(), after=settings.sweep_after, keep_messages_for=settings.keep_messages_for
    )
    with automatic.sweeping():
        yield


def source_of(rows: SourceRows, mirror: MirrorTable) -> SourceOfMirror:
    """Return the table of the source that a mirror is of; SweepRefusedError if it is of another source.

    One that cannot be described keeps no other from being found.
    """
    unknown: list[str] = []
    for name in rows.tables():
        try:
            found = described(rows, name)
        except (MisconfiguredError, PoisonRecordError) as error:
            unknown.append(f"{name} ({error})")
            continue
        if label_of(source_table(found.header)) == mirror.label:
            return found
    of_others = f"; it cannot say what these are: {', '.join(unknown)}" if unknown else ""
    raise SweepRefusedError(
        f"SOURCE_ROWS answers for no table that {mirror.definition.identity} is a mirror of, so nobody can be asked "
        "what lives: sweep it by command (python -m services.cdc_consumer sweep TABLE --before "
        f"{shown_time(mirror.complete_since)}), with the command of its own source's reader as --source{of_others}"
    )
