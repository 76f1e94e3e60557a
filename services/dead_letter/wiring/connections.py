"""What commands and the HTTP API reach by the settings: store, topic, mirrors. Each is opened when it is needed."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from services.dead_letter.adapters.mirrors import BigQueryMirrors
from services.dead_letter.adapters.replay_publisher import PubsubReplayPublisher
from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.app.replay.replay_tools import ReplayTools
from services.dead_letter.core.attention import Launcher
from services.dead_letter.core.pipeline import Pipeline, named
from services.dead_letter.core.plan import Terms
from services.dead_letter.ports import DeadLetterStore, Mirrors, ReplayPublisher
from services.dead_letter.settings import CommandSettings
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.pubsub.channels import open_channel
from shared.pubsub.names import subscription_path, topic_path
from shared.pubsub.topology import check_topic
from shared.runtime.google_names import subscription_id, topic_id
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file

_KEPT_FOR: Final = timedelta(minutes=10)  # the least that any subscription keeps messages: that there is one is asked


def known_launcher(settings: CommandSettings) -> Launcher:
    """Return how commands are started: a clone has the launcher beside the code, an image has not."""
    in_clone = (Path(__file__).parents[3] / "millrace").is_file()
    return Launcher(in_clone=in_clone, directory=settings.console_settings)


@contextmanager
def known_store(settings: CommandSettings) -> Iterator[DeadLetterStore]:
    """Open the store for the block; MisconfiguredError where there is none."""
    with closing(open_database(settings.database, make=False)) as database:
        yield SqlDeadLetterStore(database)


@contextmanager
def replay_topic(settings: CommandSettings, stop: Stop) -> Iterator[ReplayPublisher]:
    """Open the topic that replays go to for the block; MisconfiguredError where it is none, or is not named."""
    missing = [
        name for name, value in (("TOPIC", settings.topic), ("GOOGLE_CLOUD_PROJECT", settings.project)) if value is None
    ]
    if settings.topic is None or settings.project is None:
        raise MisconfiguredError(
            "replay-topic-not-set", f"set {' and '.join(missing)}: the topic of the change batches, where replays go"
        )
    topic = topic_path(settings.project, settings.topic)
    with open_channel(settings.pubsub_emulator_host) as channel:
        check_topic(channel, topic, _KEPT_FOR, stop)  # one without a subscription confirms, and drops, what it takes
        emulated = settings.pubsub_emulator_host is not None
        yield PubsubReplayPublisher(channel, topic, stop, emulated=emulated)


def replay_tools(settings: CommandSettings) -> ReplayTools:
    """Return what replays act through."""
    return ReplayTools(
        publisher=partial(replay_topic, settings),
        mirrors=partial(known_mirrors, settings),
        tables=partial(known_tables, settings),
        terms=Terms(max_replays=settings.max_replays),
    )


def pipeline_named(settings: CommandSettings, subscription: str | None, topic: str | None) -> Pipeline:
    """Return the pipeline of these names, full ones or short ones of the project that the settings name."""
    emulated = settings.pubsub_emulator_host is not None

    def full(
        option: str, name: str | None, check: Callable[[str], None], path: Callable[[str, str], str]
    ) -> str | None:
        if name is None:
            return None
        try:
            check(name)
        except ValueError as error:
            raise MisconfiguredError("pipeline-name-malformed", f"{option} cannot be {name!r}: {error}") from None
        if settings.project is None and not name.startswith("projects/"):
            raise MisconfiguredError("pubsub-project-not-set", f"set GOOGLE_CLOUD_PROJECT: the project of {name}")
        return named(path(settings.project or "", name), emulated=emulated)

    return Pipeline(
        subscription=full("--subscription", subscription, subscription_id, subscription_path),
        topic=full("--topic", topic, topic_id, topic_path),
    )


def known_tables(settings: CommandSettings) -> TablesFile:
    """Return what the tables file says; of no file, that every table is mirrored."""
    _text, tables = load_tables_file(settings.tables_file)
    return tables


@contextmanager
def known_mirrors(settings: CommandSettings) -> Iterator[Mirrors | None]:
    """Open the mirrors for the block; None where it is not said where they are."""
    if settings.bigquery_dataset is None:
        yield None
        return
    if settings.dataset_project is None:
        raise MisconfiguredError(
            "bigquery-project-not-set", "set BIGQUERY_PROJECT, or GOOGLE_CLOUD_PROJECT: the project of BIGQUERY_DATASET"
        )
    tables = known_tables(settings)
    datasets = [settings.bigquery_dataset, *sorted(tables.datasets - {settings.bigquery_dataset})]
    with closing(open_client(settings.dataset_project, settings.bigquery_emulator_host)) as client:
        yield BigQueryMirrors(client, settings.dataset_project, datasets, lambda table: tables.options(table).dataset)
