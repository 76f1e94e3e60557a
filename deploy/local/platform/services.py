"""The services as processes: the environment of each, when it is ready, and its metrics.

Used by `make run` and by the end-to-end tests. The services are never imported.
"""

import http.client
import json
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from prometheus_client.parser import text_string_to_metric_families

from deploy.local.platform.emulators import HOST, ROOT, free_port
from deploy.local.platform.processes import Process, Processes
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.pubsub.channels import open_channel
from shared.pubsub.names import subscription_path, topic_path
from shared.pubsub.topology import PubsubTopology, create_topology

READER: Final = "services.spanner_reader"
BIGTABLE_READER: Final = "services.bigtable_reader"
CONSUMER: Final = "services.cdc_consumer"
DEAD_LETTER: Final = "services.dead_letter"
TIMEOUT: Final = timedelta(seconds=240)
"""How long a service may take to be ready: Spark's start on a busy machine, and some."""

DEAD_LETTERS: Final = "dead_letters.sqlite3"

_KEPT: Final = re.compile(
    r"PATH|HOME|USER|LANG|LC_.*|TZ|TMPDIR|TERM|JAVA_HOME|CLOUDSDK_.*|PYTHONDONTWRITEBYTECODE|SSL_CERT_FILE"
)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What all pipelines into one dataset share: the topic, the dataset and the tables file."""

    pubsub: str
    bigquery_rest: str
    bigquery_grpc: str
    project: str
    name: str = "millrace"
    """Its topic and dataset, and the first part of the other names."""
    tables_file: str | None = None
    """The tables file of the services; None: all tables are mirrored."""

    @property
    def topology(self) -> PubsubTopology:
        """Return the topics and subscriptions."""
        return PubsubTopology(
            topic=topic_path(self.project, self.name),
            subscription=subscription_path(self.project, f"{self.name}-consumer"),
            dead_letter_topic=topic_path(self.project, f"{self.name}-dead-letters"),
            dead_letter_subscription=subscription_path(self.project, f"{self.name}-dead-letters"),
        )

    @property
    def dataset(self) -> str:
        """Return the dataset, whose name may hold no hyphen."""
        return self.name.replace("-", "_")

    def create_topics(self) -> None:
        """Make the topics and subscriptions, as `python -m services.cdc_consumer setup` does."""
        with open_channel(self.pubsub) as channel:
            create_topology(channel, self.topology)

    def consumer_environment(self, checkpoint: Path) -> dict[str, str]:
        """Return the settings of a consumer of this pipeline."""
        topology = self.topology
        return {
            "GOOGLE_CLOUD_PROJECT": self.project,
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "SUBSCRIPTION": topology.subscription,
            "DEAD_LETTER_TOPIC": topology.dead_letter_topic,
            "BIGQUERY_PROJECT": self.project,
            "BIGQUERY_DATASET": self.dataset,
            "BIGQUERY_EMULATOR_HOST": self.bigquery_rest,
            "BIGQUERY_STORAGE_EMULATOR_HOST": self.bigquery_grpc,
            "SPARK_MASTER": "local[2]",
            "CHECKPOINT_LOCATION": str(checkpoint),
            "CLOCK_MARGIN": "0s",  # all of it is on one machine
            **self._tables_file(),
        }

    def dead_letter_environment(self, store: Path) -> dict[str, str]:
        """Return the settings of the dead-letter service of this pipeline, and of its commands."""
        topology = self.topology
        return {
            "GOOGLE_CLOUD_PROJECT": self.project,
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "DEAD_LETTER_SUBSCRIPTION": topology.dead_letter_subscription,
            "TOPIC": topology.topic,
            "DATABASE": f"sqlite:///{store}",
            "BIGQUERY_PROJECT": self.project,
            "BIGQUERY_DATASET": self.dataset,
            "BIGQUERY_EMULATOR_HOST": self.bigquery_rest,
            **self._tables_file(),
        }

    def _publishing(self, start: Nanoseconds | None) -> dict[str, str]:
        """Return the settings that readers of any source have in common."""
        topology = self.topology
        settings = {
            "GOOGLE_CLOUD_PROJECT": self.project,
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "TOPIC": topology.topic,
            "DEAD_LETTER_TOPIC": topology.dead_letter_topic,
            "SUBSCRIPTION": topology.subscription,
            **self._tables_file(),
        }
        return settings if start is None else {**settings, "START_TIMESTAMP": format_timestamp(start)}

    def _tables_file(self) -> dict[str, str]:
        return {} if self.tables_file is None else {"TABLES_FILE": self.tables_file}


@dataclass(frozen=True, kw_only=True)
class Pipeline(Flow):
    """A pipeline from a change stream of a Spanner database: the names of what it reads."""

    module: ClassVar[str] = READER

    spanner: str
    database: str
    change_stream: str
    instance: str
    partition_database: str | None = None

    @property
    def name_of_source(self) -> str:
        """Return what is read: a database."""
        return self.database

    def reader_environment(self, start: Nanoseconds | None = None) -> dict[str, str]:
        """Return the settings of a reader of this pipeline."""
        return {
            **self._publishing(start),
            "SPANNER_EMULATOR_HOST": self.spanner,
            "SPANNER_INSTANCE": self.instance,
            "SPANNER_DATABASE": self.database,
            "PARTITION_DATABASE": self.partition_database or self.database,
            "CHANGE_STREAM": self.change_stream,
        }


@dataclass(frozen=True, kw_only=True)
class BigtablePipeline(Flow):
    """A pipeline from the change stream of a Bigtable table."""

    module: ClassVar[str] = BIGTABLE_READER

    bigtable: str
    """The address of the front before the emulator."""
    instance: str
    table: str
    app_profile: str

    @property
    def name_of_source(self) -> str:
        """Return what is read: a table."""
        return self.table

    def reader_environment(self, start: Nanoseconds | None = None) -> dict[str, str]:
        """Return the settings of a reader of this pipeline."""
        return {
            **self._publishing(start),
            "BIGTABLE_EMULATOR_HOST": self.bigtable,
            "BIGTABLE_INSTANCE": self.instance,
            "BIGTABLE_TABLE": self.table,
            "APP_PROFILE": self.app_profile,
        }


AnyPipeline = Pipeline | BigtablePipeline


class MetricSums(dict[str, float]):
    """Counters and gauges by name, each summed over its labels; empty of a service that does not answer.

    A name that a service does not expose is a LookupError. Of a service that does not answer, it is 0.
    """

    def __missing__(self, name: str) -> float:
        if self:
            raise LookupError(f"the service exposes no metric {name}: use the name that /metrics shows")
        return 0.0


class Endpoint:
    """Where a service serves its health and metrics, and its answers."""

    def __init__(self, address: str) -> None:
        """``address`` is ``host:port``."""
        self.address = address

    @property
    def ready(self) -> bool:
        """Return whether it reports that it is ready."""
        return self._get("/readyz") is not None

    @property
    def alive(self) -> bool:
        """Return whether it reports that its loop makes progress."""
        return self._get("/healthz") is not None

    def exposed(self) -> str:
        """Return its metrics as Prometheus reads them; empty while it does not answer."""
        return self._get("/metrics") or ""

    def metrics(self) -> MetricSums:
        """Return its counters and gauges; empty while it does not answer. A counter without labels yet is 0."""
        sums = MetricSums()
        for family in text_string_to_metric_families(self.exposed()):
            if family.type == "counter":
                sums[f"{family.name}_total"] = 0.0
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def status(self) -> Mapping[str, Any]:
        """Return its status document; empty while it does not answer."""
        found: Mapping[str, Any] = json.loads(self._get("/status") or "{}")
        return found

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            return None


class Service(Endpoint):
    """A service that has been started as a process of this machine."""

    def __init__(self, process: Process, port: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{HOST}:{port}")
        self.process = process
        self.port = port
        self.settings = settings or {}


def start_reader(
    processes: Processes,
    pipeline: AnyPipeline,
    name: str = "spanner_reader",
    *,
    start: Nanoseconds | None = None,
    **more: str,
) -> Service:
    """Start a reader; ``more`` are settings that replace or add to the pipeline's."""
    return _start(processes, pipeline.module, name, {**pipeline.reader_environment(start), **more})


def start_consumer(
    processes: Processes, pipeline: Flow, name: str = "cdc_consumer", *, module: str = CONSUMER, **more: str
) -> Service:
    """Start a consumer; one of the same name goes on at the checkpoint of the one before."""
    settings = pipeline.consumer_environment(processes.directory / f"{name}-checkpoint")
    return _start(processes, module, name, {**settings, **more})


def start_dead_letter(processes: Processes, pipeline: Flow, name: str = "dead_letter", **more: str) -> Service:
    """Start the dead-letter service; one of the same directory goes on with the store of the one before."""
    return _start(
        processes, DEAD_LETTER, name, {**pipeline.dead_letter_environment(dead_letters_in(processes.directory)), **more}
    )


def dead_letters_in(directory: Path) -> Path:
    """Return the file of the store of the dead-letter service that has its logs in a directory."""
    return directory / DEAD_LETTERS


@dataclass(frozen=True)
class DeadLettersApi:
    """Where the dead-letter service answers over HTTP, and the file with the token that it takes."""

    port: int
    token_file: Path

    @classmethod
    def create(cls, directory: Path) -> "DeadLettersApi":
        """Choose a port, and make a token in a file that no other user may read."""
        token_file = directory / "api-token"
        token_file.unlink(missing_ok=True)
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_urlsafe(32) + "\n")
        return cls(free_port(), token_file)

    @property
    def console(self) -> str:
        """Return the address of its pages."""
        return f"http://{HOST}:{self.port}/"

    @property
    def url(self) -> str:
        """Return what its paths are under."""
        return f"{self.console}v1"

    @property
    def settings(self) -> dict[str, str]:
        """Return the service's settings for it."""
        return {
            "API_HOST": HOST,
            "API_PORT": str(self.port),
            "API_TOKEN_FILE": str(self.token_file),
            "CONSOLE_SETTINGS": os.path.relpath(self.token_file.parent, ROOT),
        }


@dataclass(frozen=True)
class DeadLettersCommand:
    """The command for dead letters, `python -m services.dead_letter`, with its environment."""

    environment: Mapping[str, str]

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Run it; return the exit code and its output."""
        ran = subprocess.run(
            [sys.executable, "-m", DEAD_LETTER, *arguments],
            env={**self.environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout if ran.returncode == 0 else ran.stdout + ran.stderr

    def show(self, *arguments: str) -> int:
        """Run it on this terminal; return the exit code."""
        environment = {**self.environment, "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-m", DEAD_LETTER, *arguments], env=environment, check=False).returncode


def wait_until_ready(processes: Processes, *services: Service, timeout: timedelta = TIMEOUT) -> None:
    """Wait until all of them report that they are ready; ProcessDiedError with the end of its log if one dies."""
    for service in services:
        processes.wait_until(lambda one=service: one.ready, f"{service.process.name} to be ready", timeout)  # type: ignore[misc]


def show_status(environment: Mapping[str, str], readers: Sequence[AnyPipeline], consumer: str) -> int:
    """Run each service's own `status`, the consumer's for its ``host:port``; return the highest exit code."""
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    commands = [([pipeline.module, "status"], {**environment, **pipeline.reader_environment()}) for pipeline in readers]
    commands.append(([CONSUMER, "status", "--address", consumer], environment))
    ended = [subprocess.run([sys.executable, "-m", *words], env=settings, check=False) for words, settings in commands]
    return max(one.returncode for one in ended)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what children keep of our environment: no setting of a service may come in from the user's shell."""
    return {name: value for name, value in environment.items() if _KEPT.fullmatch(name)}


def _start(processes: Processes, module: str, name: str, settings: Mapping[str, str]) -> Service:
    port = int(settings.get("PORT", "0")) or free_port()
    settings = {**settings, "PORT": str(port)}
    process = processes.start(name, [sys.executable, "-m", module], {"PYTHONPATH": str(ROOT), **settings})
    return Service(process, port, settings)
