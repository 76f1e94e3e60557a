"""The settings of this service and of its set-up, read once from the environment."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from shared.runtime.google_names import dataset_id, project_id, subscription_id, topic_id
from shared.runtime.settings import LogFormat, LogLevel, check_together, file_there, setting, together

_LOCAL: Final = re.compile(r"local(?:\[(\d+)(?:,\d+)?\])?", re.ASCII)
_MASTER: Final = re.compile(
    r"local(?:\[(?:\d+|\*)(?:,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://\S+|k8s://\S+|yarn|submitted", re.ASCII
)
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]", re.ASCII | re.IGNORECASE)


def _master(address: str) -> None:
    """Refuse what is no address of a Spark: Spark itself says so with a page of Java."""
    if _MASTER.fullmatch(address) is None:
        raise ValueError(
            "names no Spark: write local[N], local[*], local-cluster[N,C,M], spark://host:port, "
            "k8s://https://host:port, yarn, or submitted where spark-submit starts the consumer"
        )


def _memory(amount: str) -> None:
    """Refuse what Java takes for no size: the process that Spark starts would end at once."""
    if _MEMORY.fullmatch(amount) is None:
        raise ValueError("not a size of memory: a whole number and k, m, g or t, such as 512m or 2g")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the consumer."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", check=project_id)
    subscription: str = setting("the subscription of the change batches", check=subscription_id)
    dead_letter_topic: str = setting("the topic for what can never be applied", check=topic_id)
    bigquery_dataset: str = setting("the dataset of the mirrored tables", check=dataset_id)
    bigquery_project: str | None = setting("the dataset's project; the project", default=None, check=project_id)
    tables_file: Path | None = setting(
        "which tables, under what names and how (TOML); all, as they are", default=None, check=file_there
    )
    spark_master: str = setting(
        "where Spark runs; submitted: in the Spark whose spark-submit starts the consumer, as a managed Spark does",
        default="local[2]",
        check=_master,
    )
    driver_memory: str = setting(
        "Spark's memory on the driver, unless it is submitted", env="SPARK_DRIVER_MEMORY", default="1g", check=_memory
    )
    checkpoint_location: str | None = setting(  # no Path: that would make gs:/bucket/x of gs://bucket/x
        "a directory for Spark's count of micro-batches, for that of the processes that a message has ended, and for "
        "when each mirror was made, which has to outlive its container; elsewhere (gs://bucket/x) Spark keeps its own "
        "count, and the rest is as without one: in a temporary place, which loses nothing, but a mirror that is "
        "dropped and made again around a restart is not found; one consumer at a time uses a directory, which a lock "
        "in it makes sure of; elsewhere nothing does",
        default=None,
    )
    trigger: Literal["always", "available-now"] = setting(
        "whether to run until asked to stop, or to end once nothing is left that could be leased: with exit code 3 if "
        "messages are deferred, by this run or one before it on the same machine with the same CHECKPOINT_LOCATION; it "
        "does not know what was deferred elsewhere, or is leased by a run that was killed (up to four ack deadlines)",
        default="always",
    )
    tasks_port: int = setting(
        "the port at which Spark's tasks report, and hear of a stop; 0: any that is free",
        default=0,
        least=0,
        most=65535,
    )
    tasks: int = setting(
        "tasks that pull, and tasks that write, in a micro-batch", unit="tasks", default=2, least=1, most=10_000
    )
    micro_batch_messages: int = setting(
        "messages in a micro-batch, at most", unit="messages", default=10_000, least=1, most=100_000_000
    )
    micro_batch_bytes: int = setting(
        "bytes of messages in a micro-batch, about; one buffer of a task may hold them all",
        unit="bytes",
        default=128 << 20,
        least=1,
        most=1 << 30,
    )
    poison_limit: int = setting(
        "how many messages that cannot be read may become dead letters though most are such; ten times for changes",
        unit="messages",
        default=100,
        least=0,
    )
    linger: timedelta = setting("how long more messages are waited for", default=timedelta(milliseconds=50))
    keep_messages_for: timedelta = setting(
        "how long the subscription and the dead-letter topic's have to keep messages", default=timedelta(days=7)
    )
    clock_margin: timedelta = setting(
        "how far ahead of BigQuery's clock a source's may be: a snapshot that began no later than that after its "
        "mirror was made does not make it complete",
        default=timedelta(minutes=5),
    )
    delete_missing_rows: Literal["manual", "automatic"] = setting(
        "whether rows that a snapshot of their table has shown to be gone are deleted without being asked for",
        default="manual",
    )
    delete_missing_rows_after: timedelta = setting(
        "how long a table has to be complete, before DELETE_MISSING_ROWS=automatic deletes anything of it, and before "
        "a deletion calls healed what was made again",
        default=timedelta(minutes=10),
    )
    source_rows: str | None = setting(
        "the command line that answers for the source's rows: `python -m services.spanner_reader rows`, for one; "
        "if unset, commands take that, and DELETE_MISSING_ROWS=automatic asks no source and deletes no more than a "
        "part of a table, or is refused where Spark's tasks run on other machines; if set, only rows of tables that it "
        "answers for are deleted",
        default=None,
    )
    liveness: timedelta = setting(
        "how long a micro-batch may give no sign of life; one that waits for a service gives one at each retry, and "
        "where Spark's tasks run on other machines, one gives it for as long as Spark has a task of it at work",
        default=timedelta(minutes=15),
        least=timedelta(seconds=15),
    )
    refused_after: timedelta = setting(
        "over what time the headers of a table that has had changes are refused before `status` shows it as refused",
        default=timedelta(minutes=1),
    )
    log_level: LogLevel = setting("the least severity that is logged", default="INFO")
    log_format: LogFormat = setting("text is for people; auto: text where stderr is a terminal", default="auto")
    host: str = setting("the address that health and metrics listen on", default="127.0.0.1")
    port: int = setting("of health and metrics; 0 for a free one", default=8081, least=0, most=65_535)
    pubsub_emulator_host: str | None = setting("host:port of an emulator", default=None)
    bigquery_emulator_host: str | None = setting("host:port of a stand-in's REST side", default=None)
    bigquery_storage_emulator_host: str | None = setting("host:port of a stand-in's write API (gRPC)", default=None)

    def __post_init__(self) -> None:
        """Check what shows only when the fields are seen together."""
        check_together(self)

    @together
    def _slots(self) -> str | None:
        local = _LOCAL.fullmatch(self.spark_master)
        slots = int(local[1] or 1) if local else self.tasks
        if self.tasks <= slots:
            return None
        # the messages of a task that waits for a slot have leases that are not extended
        return f"TASKS={self.tasks} is more than the {slots} that SPARK_MASTER={self.spark_master} can run"

    @together
    def _stand_ins(self) -> str | None:
        if bool(self.bigquery_emulator_host) == bool(self.bigquery_storage_emulator_host):
            return None
        return "set both BIGQUERY_EMULATOR_HOST (REST) and BIGQUERY_STORAGE_EMULATOR_HOST (gRPC), or none"

    @together
    def _deletes_unseen(self) -> str | None:
        if (
            self.delete_missing_rows == "manual"
            or self.source_rows is not None
            or self.spark_master.startswith("local")
        ):
            return None
        return (
            "DELETE_MISSING_ROWS=automatic needs SOURCE_ROWS where Spark's tasks run on other machines "
            f"(SPARK_MASTER={self.spark_master}): what they hold that may yet bring rows is not known there while a "
            "network fails, so the source has to be asked which rows exist; set SOURCE_ROWS (a reader's command "
            "`rows`), or DELETE_MISSING_ROWS=manual"
        )

    @property
    def one_machine(self) -> bool:
        """Return whether all tasks run on this machine for certain: not those of a cluster, be it a local one."""
        return self.spark_master.partition("[")[0] == "local"

    @property
    def dataset_project(self) -> str:
        """Return the project that the dataset is in."""
        return self.bigquery_project or self.project


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupSettings:
    """What `setup` makes: two topics and a subscription of each."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", check=project_id)
    topic: str = setting("the topic of the change batches", check=topic_id)
    subscription: str = setting("the consumer's subscription of it", check=subscription_id)
    dead_letter_topic: str = setting("the topic for what can never be applied", check=topic_id)
    dead_letter_subscription: str | None = setting(
        "its subscription; named like the topic", default=None, check=subscription_id
    )
    ack_deadline: timedelta = setting(
        "how long a message is leased",
        default=timedelta(seconds=60),
        least=timedelta(seconds=10),
        most=timedelta(seconds=600),
    )
    keep_messages_for: timedelta = setting("how long both subscriptions keep messages", default=timedelta(days=7))
    log_level: LogLevel = setting("the least severity that is logged", default="INFO")
    log_format: LogFormat = setting("text is for people; auto: text where stderr is a terminal", default="auto")
    pubsub_emulator_host: str | None = setting("host:port of an emulator", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSettings:
    """What `tables` takes beside the file that it checks. Whether the consumer's own settings are right it reports."""

    bigquery_dataset: str = setting("the dataset of the mirrored tables", default="BIGQUERY_DATASET", check=dataset_id)
    source_rows: str = setting(
        "the command that answers for the source: its reader's command `rows`, run with the environment of this one",
        default="python -m services.spanner_reader rows",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """What `reconcile` has to know of the consumer whose mirrors it compares, and how it asks their source."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", check=project_id)
    bigquery_dataset: str = setting("the dataset of the mirrored tables", check=dataset_id)
    bigquery_project: str | None = setting("the dataset's project; the project", default=None, check=project_id)
    tables_file: Path | None = setting(
        "which tables, under what names and how (TOML), as the consumer has it", default=None, check=file_there
    )
    source_rows: str = setting(
        "the command that answers for the source: its reader's command `rows`, run with the environment of this one",
        default="python -m services.spanner_reader rows",
    )
    log_level: LogLevel = setting("the least severity that is logged", default="WARNING")
    log_format: LogFormat = setting("text is for people; auto: text where stderr is a terminal", default="auto")
    bigquery_emulator_host: str | None = setting("host:port of a stand-in's REST side", default=None)

    @property
    def dataset_project(self) -> str:
        """Return the project that the dataset is in."""
        return self.bigquery_project or self.project
