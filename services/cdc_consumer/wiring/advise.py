"""The command `advise`, and its summary in `doctor`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from services.cdc_consumer.adapters.advice.figures import AdviceFigures
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.commands.advise import consumer_figures, lines
from services.cdc_consumer.commands.command_line import AdviseCommand
from services.cdc_consumer.commands.status import Address
from services.cdc_consumer.core.advice.advice import SOURCE_KEPT, Advice, Question, advise
from services.cdc_consumer.core.advice.capacity import ReservationNames
from services.cdc_consumer.core.advice.figures import AdviceProblem
from services.cdc_consumer.core.advice.pipeline import stream_storage
from services.cdc_consumer.core.advice.prices import Prices
from services.cdc_consumer.settings import Settings
from shared.bigquery.client import open_client
from shared.contracts.durations import format_duration
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import microseconds, parse_timestamp
from shared.runtime.answers import print_answer
from shared.runtime.findings import Finding
from shared.runtime.logs import configure_logs
from shared.runtime.service import command_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def advise_command(parsed: AdviseCommand, environ: Mapping[str, str], stop: Stop, out: TextIO) -> int:
    """Ask, print and return the exit code: 1 where something should be changed, or cannot be read."""
    settings = command_settings(Settings, environ)
    configure_logs(service="cdc_consumer", level="WARNING", log_format=settings.log_format)
    prices = Prices().changed(parsed.price)
    if not parsed.per:
        raise MisconfiguredError(
            "advise-per-zero", "--per 0s: name the time in which --changes are expected, such as 1s or 60s"
        )
    written = parsed.written_per_day
    unread: list[AdviceProblem] = []
    source_kept, source_kept_by = parsed.source_retention, "--source-retention"
    if source_kept is None:
        source_kept, source_kept_by = _source_retention(settings.source_rows, environ, stop, unread)
    question = Question(
        project=settings.dataset_project,
        at=datetime.now(UTC),
        names=ReservationNames(
            admin_project=parsed.admin_project or settings.dataset_project,
            reservation=parsed.reservation,
            assignment=parsed.assignment,
            edition=parsed.edition,
        ),
        prices=prices,
        tolerable=parsed.tolerable,
        streamed=None if parsed.deleted_at is None else _datetime(parsed.deleted_at),
        kept=settings.keep_messages_for,
        source_kept=source_kept,
        source_kept_by=source_kept_by,
        changes_per_second=None if parsed.changes is None else parsed.changes / parsed.per.total_seconds(),
        change_bytes=parsed.change_bytes,
        drained=parsed.drained,
        stream_storage=None if written is None else stream_storage(written, source_kept, parsed.clusters, prices),
    )
    _text, file = load_tables_file(settings.tables_file)
    client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
    advice = _advice(client, settings, file, question, parsed.tables, parsed.address)
    advice = replace(advice, problems=[*unread, *advice.problems])
    print_answer(advice, lines(advice), parsed.json, out)
    return int(bool(advice.problems))


def summary(client: Any, settings: Settings, file: TablesFile) -> Iterator[Finding]:
    """Yield what `doctor` says of it: one line, and what should be changed. What may not be read is no finding."""
    project = settings.dataset_project
    question = Question(project=project, at=datetime.now(UTC), names=ReservationNames(admin_project=project))
    advice = _advice(client, settings, file, question)
    if not advice.mirrors:
        return
    best = [
        f"{one.mirror.name} {format_duration(one.recommended)}" for one in advice.mirrors if one.recommended is not None
    ]
    unread = [f"{one.check}: {one.detail}" for one in advice.problems if one.unread]
    text = f"recommended max_staleness: {', '.join(best) or 'unknown'}"
    yield Finding.ok("advice", "\n".join([f"{text}; the command `advise` says why, and what applies cost", *unread]))
    for problem in advice.problems:
        if not problem.unread:
            yield Finding.warning(f"advice: {problem.check}", problem.detail, problem.fix)


def _advice(
    client: Any,
    settings: Settings,
    file: TablesFile,
    question: Question,
    tables: Sequence[str] = (),
    address: str | None = None,
) -> Advice:
    dataset = settings.bigquery_dataset
    address = address or str(Address(host=settings.host, port=settings.port))
    consumer = consumer_figures(address, dataset, question.at)
    asked = AdviceFigures(client, question.project, question.names.admin_project)
    regions = asked.regions([dataset, *file.datasets], file.dataset_templates, tables)
    return advise(regions, consumer, question, asked.unread)


def _source_retention(
    command: str | None, environ: Mapping[str, str], stop: Stop, unread: list[AdviceProblem]
) -> tuple[timedelta, str]:
    """Return what the source retains, and where that is from; what it does not answer is assumed."""
    assumed = "assumed: name it with --source-retention, or let SOURCE_ROWS ask the source"
    if command is None:
        return SOURCE_KEPT, assumed
    try:
        with opened_source(command, environ, stop) as source:
            retention = timedelta(seconds=source.listed().retention)
    except (TransientError, MisconfiguredError) as error:
        if stop.requested:
            raise
        unread.append(AdviceProblem("source retention", str(error), "name it with --source-retention", unread=True))
        return SOURCE_KEPT, assumed
    return (retention, "answered by SOURCE_ROWS") if retention else (SOURCE_KEPT, assumed)


def _datetime(text: str) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds(parse_timestamp(text)))
