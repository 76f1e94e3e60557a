"""A mirrored table of each kind of source: rows to plant in its mirror, and the commands that find and heal them."""

import json
import shlex
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import CONSUMER, AnyPipeline, BigtablePipeline
from deploy.local.platform.source import Row, Write
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.timestamps import microseconds, parse_timestamp
from tests.e2e.rig import Rig
from tests.integration.bigtable_front import FrontTable, set_cell
from tests.integration.stand_in import Writing
from tests.row_messages import CHANGE, change, row_message


class Mirrored(ABC):
    """A table whose keys are numbers, and its mirror."""

    fields: ClassVar[Mapping[str, str]]
    """The columns that rows are planted with, its key first, and their protobuf types."""

    def __init__(self, rig: Rig, name: str, pipeline: AnyPipeline, **settings: str) -> None:
        """``settings`` are those of its reader beside the pipeline's."""
        self.rig = rig
        self.name = name
        self.pipeline = pipeline
        self.settings = settings

    @property
    def key(self) -> str:
        """Return the mirror's key column."""
        return next(iter(self.fields))

    @abstractmethod
    def write(self, keys: Iterable[int], what: str) -> None:
        """Write rows at the source."""

    @abstractmethod
    def planted(self, key: int) -> Mapping[str, Any]:
        """Return a row that the source has never had."""

    def plant(self, *, deleted: int, changed: int, extra: int) -> None:
        """Write rows to BigQuery past the pipeline, as if the newest changes that are applied were these.

        Newer ones would pass for how far the mirror has come, and `reconcile` would not see that it is behind.
        """
        newest = max(str(row["_millrace_sequence"]) for row in self.rows())
        micros = parse_sequence(newest).sections[0] + 1
        key = {self.key: self.planted(deleted)[self.key]}
        upserts = [an_upsert(micros, self.planted(one)) for one in (changed, extra)]
        self.append(change("DELETE", str(four_sections(micros)), **key), *upserts)

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the mirror."""
        return self.rig.target.rows(self.name) or []

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append rows to the mirror, as nobody but the consumer should."""
        fields = {**CHANGE, **self.fields, "_millrace_sequence": "string", "_millrace_commit_timestamp": "int64"}
        flow = self.rig.pipeline
        stream = f"projects/{flow.project}/datasets/{flow.dataset}/tables/{self.name}/streams/_default"
        with Writing(flow.bigquery_grpc, stream, row_message(fields)) as writing:
            answer = writing.append(rows)
        assert answer.HasField("append_result"), answer

    def reconcile(self, settle: str, *more: str) -> tuple[int, Mapping[str, Any]]:
        """Compare the table with its mirror; return the exit code, and what is said of it.

        ``settle`` is longer than changes take from commit to BigQuery.
        """
        code, answer = self._consumer("reconcile", self.name, "--settle", settle, *more)
        assert answer["not_compared"] == []
        (found,) = answer["tables"]
        return code, found

    def differences(self, settle: str) -> tuple[int, Mapping[int, str]]:
        """Return what `reconcile` exits with, and which rows it says differ, and how."""
        code, found = self.reconcile(settle)
        return code, {int(one["key"][0]): one["kind"] for one in found["differences"]}

    def snapshot(self, *more: str) -> Mapping[str, Any]:
        """Ask for a snapshot, or with ``--status`` how it is; return what is said of it."""
        whole = () if isinstance(self.pipeline, BigtablePipeline) or "--status" in more else (self.name,)
        _code, answer = self._command(self.pipeline.module, "snapshot", *whole, *more, "--json")
        (found,) = [one for one in answer["snapshots"] if one["table"] == self.name]
        return dict(found)

    def delete_missing_rows(self, since: str, *more: str) -> tuple[int, Mapping[str, Any]]:
        """Look for rows older than a time that the source does not have, or delete them; return what is said."""
        return self._consumer("delete-missing-rows", self.name, "--before", since, *more)

    def older(self, since: str) -> set[int]:
        """Return the keys of the mirror's rows that are from before a time."""
        first = str(four_sections(microseconds(parse_timestamp(since))))
        return {int(row[self.key]) for row in self.rows() if row["_millrace_sequence"] < first}

    def _consumer(self, *arguments: str) -> tuple[int, Mapping[str, Any]]:
        source = shlex.join([sys.executable, "-m", self.pipeline.module, "rows"])
        return self._command(CONSUMER, *arguments, "--source", source, "--json")

    def _command(self, module: str, *arguments: str) -> tuple[int, Mapping[str, Any]]:
        """Run a command of the consumer or of the reader; return its exit code, and the object that it prints."""
        processes = self.rig.processes
        environment = {
            **processes.environment,
            **self.pipeline.consumer_environment(processes.directory / "cdc_consumer-checkpoint"),
            **self.pipeline.reader_environment(),
            **self.settings,
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", module, *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert ran.stdout, (arguments, ran.stderr)
        return ran.returncode, json.loads(ran.stdout)


class Singers(Mirrored):
    """The singers, in Spanner."""

    fields: ClassVar = {"Id": "int64", "Name": "string"}

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, rig.named("Singers"), rig.pipeline)

    def write(self, keys: Iterable[int], what: str) -> None:
        """Commit them in one transaction."""
        seen = datetime.now(UTC).replace(microsecond=0)  # in a change stream the emulator drops the rest
        rows: list[Row] = [{"Id": key, "Name": what, "Seen": seen} for key in keys]
        self.rig.commit(*(Write("insert_or_update", "Singers", row) for row in rows))

    def planted(self, key: int) -> Mapping[str, Any]:
        """Return a singer of a name that nobody has."""
        return {"Id": key, "Name": "planted"}


class Tags(Mirrored):
    """Tags of which some are numbers, in Spanner."""

    fields: ClassVar = {"Tag": "string"}

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, rig.named("Tags"), rig.pipeline)

    def write(self, keys: Iterable[int], what: str) -> None:
        """Commit them; they have nothing but a key."""
        self.rig.commit(*(Write("insert_or_update", "Tags", {"Tag": str(key)}) for key in keys))

    def planted(self, key: int) -> Mapping[str, Any]:
        """Return a tag."""
        return {"Tag": str(key)}


class Cells(Mirrored):
    """A table of Bigtable with the family f; its rows go to the same dataset."""

    fields: ClassVar = {"row_key": "string", "f": "string"}

    def __init__(self, rig: Rig, source: FrontTable) -> None:
        self.source = source
        pipeline = rig.standing.bigtable(source)
        super().__init__(rig, pipeline.table, pipeline, PARTITION_TABLE=f"partitions-{uuid.uuid4().hex[:8]}")

    def write(self, keys: Iterable[int], what: str) -> None:
        """Write a cell of each row."""
        for key in keys:
            self.source.write(b"%d" % key, set_cell("f", b"q", what.encode()))

    def planted(self, key: int) -> Mapping[str, Any]:
        """Return a row of a cell that nobody wrote."""
        return {"row_key": str(key), "f": '{"q": "cGxhbnRlZA=="}'}


def an_upsert(micros: int, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row as the consumer would write it, with what it writes beside the source's columns."""
    sequence = str(four_sections(micros))
    return change("UPSERT", sequence, _millrace_sequence=sequence, _millrace_commit_timestamp=micros, **row)


def never_reached() -> int:
    """Return a time, in microseconds, after that of all that can be published for a year."""
    return time.time_ns() // 1_000 + timedelta(days=400) // timedelta(microseconds=1)
