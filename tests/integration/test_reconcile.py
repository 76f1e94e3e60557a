"""Mirrors compared with Spanner while both go on changing: exactly what was planted is named, and a repair heals it."""

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import grpc
import pytest

from deploy.local.platform.source import Row, SpannerDatabase, Write
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.commands.command_line import COMMAND_LINE, ReconcileCommand
from services.cdc_consumer.wiring.reconcile import reconcile
from shared.contracts.change_batch import Header, decode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import format_timestamp
from shared.pubsub.topology import PubsubTopology
from shared.runtime.stop import Stop
from tests.integration.pubsub_topics import a_topology, pull
from tests.integration.stand_in import PROJECT
from tests.unit.cdc_consumer.wire import batch_of, delete, upsert
from tests.worlds.command_lines import parsed
from tests.worlds.spanner_reading import read_all
from tests.worlds.spanner_rows import environment
from tests.worlds.type_map import EVERYTHING, KINDS, POSTGRESQL, SCHEMA, Target

pytestmark = pytest.mark.integration


@dataclass
class Pipe:
    """A Spanner database, a part of the consumer that applies what its reader publishes, and the command."""

    source: SpannerDatabase
    stream: str
    target: Target
    pubsub: str
    channel: grpc.Channel
    topology: PubsubTopology
    applying: threading.Lock = field(default_factory=threading.Lock)

    def reconcile(self, *arguments: str, settle: str = "1s") -> tuple[int, Mapping[str, Any]]:
        """Run the command; return its exit code and the object that it printed."""
        environ = {
            **environment(self.source, self.stream, self.topology, self.pubsub),
            "BIGQUERY_PROJECT": PROJECT,
            "BIGQUERY_DATASET": self.target.stand_in.dataset,
            "BIGQUERY_EMULATOR_HOST": self.target.stand_in._rest,
        }
        out = io.StringIO()
        words = [*arguments, "--json", "--settle", settle]
        code = reconcile(parsed(COMMAND_LINE, ReconcileCommand, "reconcile", *words), environ, Stop(), out)
        answer = json.loads(out.getvalue())
        assert answer["not_compared"] == []
        return code, answer

    def header(self, table: str) -> Header:
        """Return the header that the reader's rows come under."""
        settings = environment(self.source, self.stream, self.topology, self.pubsub)
        with opened_source("python -m services.spanner_reader rows", settings, Stop()) as source:
            return decode_batch(source.describe(table)[0]).header

    def apply(self, *data: bytes) -> None:
        """Apply change batches."""
        with self.applying:
            assert not self.target.apply(*data)

    @contextmanager
    def consuming(self) -> Iterator[None]:
        """Apply what is published, beside the block."""
        over = threading.Event()

        def consume() -> None:
            while not over.wait(0.2):
                if came := pull(self.channel, self.topology.subscription):
                    self.apply(*(one.message.data for one in came))

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            yield
        finally:
            over.set()
            consumer.join()


@pytest.fixture
def pipe(database: Callable[..., SpannerDatabase], target: Target, pubsub_emulator: str, channel: grpc.Channel) -> Pipe:
    """Return a pipeline whose mirrors equal their tables of keys and arrays of every type."""
    source = database(*SCHEMA)
    start = source.now()
    numbers: list[Row] = [
        {"F": 1e300, "G": 1.1, "D": date(1, 1, 1), "V": b"x"},
        {"F": -0.0, "G": 0.5, "D": date(1970, 1, 1), "V": None},
    ]
    source.commit([Write("insert", "Arrays", EVERYTHING), Write("insert", "Arrays", {"Id": 2})])
    source.commit([Write("insert", "ByNumbers", row) for row in numbers])
    source.commit([Write("insert", "ByBytes", {"Id": bytes([n]), "Name": f"n{n}"}) for n in range(100)])
    assert not target.apply(*as_published(source, "Everything", read_all(source, "Everything", start, source)))
    return Pipe(source, "Everything", target, pubsub_emulator, channel, a_topology(channel))


def as_published(source: SpannerDatabase, stream: str, batches: list[bytes]) -> list[bytes]:
    """Return batches as a reader with its own settings publishes them: from the stream of that database."""
    path = f"//spanner.googleapis.com/{source.path}/changeStreams/{stream}"
    return [batch.replace(f'"source":"{source.path}"'.encode(), f'"source":"{path}"'.encode()) for batch in batches]


def named(answer: Mapping[str, Any], table: str) -> dict[str, str]:
    """Return how which keys of a table differ."""
    (found,) = [one for one in answer["tables"] if one["table"] == table]
    return {json.dumps(one["key"]): one["kind"] for one in found["differences"]}


def edited(pipe: Pipe, table: str, sql_key: str) -> str:
    """Return a sequence that wins over what is applied to a row, as an edit of a dead letter does."""
    ((applied,),) = pipe.target.stand_in.run(f"SELECT _millrace_sequence FROM {table} WHERE {sql_key}")
    return str(applied)[:-1] + "1"


def plant(pipe: Pipe) -> None:
    """Take rows away from mirrors, change some and add some, behind everybody's back."""
    old = str(four_sections(1))
    by_bytes, arrays, by_numbers = (pipe.header(table) for table in ("ByBytes", "Arrays", "ByNumbers"))
    now = format_timestamp(pipe.source.now())
    planted = [
        (by_bytes, delete({"Id": "BQ=="}, sequence=edited(pipe, "ByBytes", "Id = 'BQ=='"), committed=now)),
        (
            by_bytes,
            upsert('{"Id":"Bw=="}', {"Name": "x"}, sequence=edited(pipe, "ByBytes", "Id = 'Bw=='"), committed=now),
        ),
        (by_bytes, upsert('{"Id":"/w=="}', {"Name": "x"}, sequence=old, committed=now)),
        (arrays, upsert('{"Id":"2"}', {"a_float64": [0.5]}, sequence=edited(pipe, "Arrays", "Id = 2"), committed=now)),
        (
            by_numbers,
            delete(
                '{"F":1e300,"G":1.100000023841858,"D":"0001-01-01"}',
                sequence=edited(pipe, "ByNumbers", "F = '1e+300'"),
                committed=now,
            ),
        ),
    ]
    for header, change in planted:
        pipe.apply(batch_of([change], header))


def test_reconcile_reports_exactly_the_planted_differences_and_repairs_them_through_the_topic(pipe: Pipe) -> None:
    code, answer = pipe.reconcile("Arrays", "ByBytes", "ByNumbers")
    assert (code, [one["verdict"] for one in answer["tables"]]) == (0, ["equal"] * 3)
    assert [one["source_rows"] for one in answer["tables"]] == [2, 100, 2]

    plant(pipe)
    code, answer = pipe.reconcile("Arrays", "ByBytes", "ByNumbers")

    assert code == 1
    assert named(answer, "ByBytes") == {'["BQ=="]': "missing", '["Bw=="]': "different", '["/w=="]': "extra"}
    assert named(answer, "Arrays") == {"[2]": "different"}
    assert named(answer, "ByNumbers") == {'[1e+300, 1.100000023841858, "0001-01-01"]': "missing"}

    with pipe.consuming():
        code, answer = pipe.reconcile("Arrays", "ByBytes", "ByNumbers", "--repair")

    assert (code, [one["repaired"] for one in answer["tables"]]) == (0, [1, 3, 1])
    assert pipe.reconcile("Arrays", "ByBytes", "ByNumbers")[0] == 0


def test_a_source_that_is_another_database_is_refused_and_nothing_is_published(
    pipe: Pipe, database: Callable[..., SpannerDatabase]
) -> None:
    other = Pipe(database(*SCHEMA), "Everything", pipe.target, pipe.pubsub, pipe.channel, pipe.topology)

    with pytest.raises(AssertionError, match="is not the mirror of"):
        other.reconcile("ByBytes", "--repair")
    assert pull(pipe.channel, pipe.topology.subscription) == []


def test_a_mirror_of_a_database_of_the_postgresql_dialect_is_compared(
    database: Callable[..., SpannerDatabase], target: Target, pubsub_emulator: str, channel: grpc.Channel
) -> None:
    source = database(*POSTGRESQL, postgresql=True)
    start = source.now()
    source.commit([Write("insert", "kinds", KINDS), Write("insert", "kinds", {"id": 2, "n": "NaN"})])
    source.commit([Write("insert", "ByParts", {"F": n / 4, "Id": bytes([n]), "v": "x"}) for n in range(3)])
    source.commit([Write("insert", "shop.orders", {"id": 1, "v": "x"}), Write("insert", "stamps", {"id": 1, "p": 0.5})])
    assert not target.apply(*as_published(source, "parts", read_all(source, "parts", start, source)))
    pipe = Pipe(source, "parts", target, pubsub_emulator, channel, a_topology(channel))

    code, answer = pipe.reconcile("--all")

    assert (code, {one["table"]: one["verdict"] for one in answer["tables"]}) == (
        0,
        dict.fromkeys(["ByParts", "kinds", "shop.orders", "stamps"], "equal"),
    )


def test_a_column_that_becomes_bytes_is_compared_and_repaired_beside_the_old_one(pipe: Pipe) -> None:
    pipe.source.alter("ALTER TABLE ByBytes ALTER COLUMN Name BYTES(MAX)")
    pipe.source.commit([Write("update", "ByBytes", {"Id": b"\x01", "Name": b"\xff"})])
    now, header = format_timestamp(pipe.source.now()), pipe.header("ByBytes")
    changed = upsert('{"Id":"AQ=="}', {"Name": "/w=="}, sequence=edited(pipe, "ByBytes", "Id = 'AQ=='"), committed=now)
    pipe.apply(batch_of([changed], header))

    code, answer = pipe.reconcile("ByBytes")
    others = {json.dumps([base64.b64encode(bytes([n])).decode()]) for n in range(100) if n != 1}
    assert (code, named(answer, "ByBytes")) == (1, dict.fromkeys(others, "different"))
    with pipe.consuming():
        assert pipe.reconcile("ByBytes", "--repair")[0] == 0

    code, answer = pipe.reconcile("ByBytes")
    assert (code, answer["tables"][0]["verdict"]) == (0, "equal")
    rows = pipe.target.stand_in.run("SELECT Name, Name_BYTES FROM ByBytes WHERE Id IN ('AQ==', 'Ag==') ORDER BY Id")
    assert [tuple(row) for row in rows] == [(None, b"\xff"), (None, b"n2")]
