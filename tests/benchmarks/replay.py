"""A replay of many dead letters: how many a second the real command sends, from its store to Pub/Sub's confirmation.

The letters are changes of the benchmark's five tables, one each, in a file of SQLite. The command judges, claims,
publishes in the order of keys and writes down what was confirmed; once without asking for mirrors, and once with
every row asked for in BigQuery (the stand-in), where all of them are older. In the end the topic's subscription has to
have every letter once.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import DEAD_LETTER, Pipeline
from deploy.local.platform.target import BigQueryDataset
from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import Arrival
from services.dead_letter.core.rows import content_of
from shared.contracts.change_batch import decode_batch, encode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.mirrors import MIRROR_OF, SEQUENCE_COLUMN, label_of
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.pubsub.stubs import AcknowledgeRequest, PullRequest, acknowledge_stub, pull_stub
from tests.benchmarks.drain import run_module
from tests.benchmarks.pipelines import Platform, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import COLUMNS, TABLES, Workload, change_maker

_KEPT_AT_ONCE: Final = 500
_INSERTED_AT_ONCE: Final = 1_000
_PULLED_AT_ONCE: Final = 1_000
_UNMIRRORED: Final = {"BIGQUERY_DATASET": ""}


def measure_replays(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Replay the same letters without mirrors and with them, and then as one does it by hand, in each run."""
    alone: list[float] = []
    asking: list[float] = []
    by_hand: list[float] = []
    for run in range(1, sizes.runs + 1):
        letters = list(_letters(sizes.replayed, seed=run))
        alone.append(_replayed(platform, platform.pipeline(f"replay-{run}"), letters, _UNMIRRORED))
        mirrored = platform.pipeline(f"replay-{run}-mirrored")
        with closing(platform.dataset(mirrored)) as dataset:
            _mirror(dataset, letters)
        asking.append(_replayed(platform, mirrored, letters, {}))
        by_hand.append(_by_hand(platform, platform.pipeline(f"replay-{run}-by-hand"), letters))
        platform.say(
            f"  replay {alone[-1]:,.0f} letters a second, {asking[-1]:,.0f} asking for mirrors, "
            f"by hand {by_hand[-1]:,.0f}"
        )
    told = f"{sizes.replayed:,} letters by the command, from a file of SQLite to Pub/Sub's confirmation, --rate 0"
    return [
        Measured(name="replay.letters", unit="letters/s", runs=alone, baseline_runs=by_hand, note=told),
        Measured(
            name="replay.letters_asking_for_mirrors",
            unit="letters/s",
            runs=asking,
            baseline_runs=by_hand,
            note="the same, with each row asked for in BigQuery before; by hand nothing is asked",
        ),
    ]


def _replayed(platform: Platform, pipeline: Pipeline, letters: Sequence[DeadLetter], more: Mapping[str, str]) -> float:
    """Fill a store, let the command replay all of it, and return letters a second, by the command's own account."""
    store = platform.processes.directory / f"{pipeline.name}.sqlite3"
    _fill(store, letters)
    arguments = ["replay", "--all", "--execute", "--rate", "0", "--json"]
    process = platform.processes.start(
        pipeline.name,
        [sys.executable, "-m", DEAD_LETTER, *arguments],
        {**pipeline.dead_letter_environment(store), "PYTHONPATH": str(ROOT), **more},
    )
    process.expected_to_end = True
    wait_until(platform, lambda: process.exit_code is not None, "the replay to end")
    lines = [line for line in process.output().splitlines() if line.startswith("{")]
    if process.exit_code or not lines:
        raise RuntimeError(process.obituary())
    told: Mapping[str, Any] = json.loads(lines[-1])
    if told["sent"] != len(letters) or told["mirrors_asked"] is bool(more):
        raise RuntimeError(f"{told['sent']} of {len(letters)} letters were sent: {told['verdicts']}")
    _check(platform, pipeline, letters)
    return len(letters) / float(told["seconds"])


def _by_hand(platform: Platform, pipeline: Pipeline, letters: Sequence[DeadLetter]) -> float:
    """Publish letters as services do, let the baseline send them back, and return letters a second."""
    topology = pipeline.topology
    DeadLetterPublisher(platform.channel, topology.dead_letter_topic, platform.processes.stop).keep(letters)
    told = {
        "subscription": topology.dead_letter_subscription,
        "topic": topology.topic,
        "dead_letters": len(letters),
    }
    answer = run_module(platform, "tests.benchmarks.baseline_replay", told, PUBSUB_EMULATOR_HOST=platform.pubsub)
    if answer["dead_letters"] != len(letters):
        raise RuntimeError(f"the baseline sent {answer['dead_letters']} of {len(letters)} letters")
    return len(letters) / answer["seconds"]


def _check(platform: Platform, pipeline: Pipeline, letters: Sequence[DeadLetter]) -> None:
    """Take everything from the topic's subscription: every letter has to be there, and once."""
    pull, ack = pull_stub(platform.channel), acknowledge_stub(platform.channel)
    subscription, found = pipeline.topology.subscription, list[str]()
    deadline = time.monotonic() + 60
    while len(found) < len(letters) and time.monotonic() < deadline:
        request = PullRequest(subscription=subscription, max_messages=_PULLED_AT_ONCE)
        received = pull(request, timeout=30).received_messages
        found += [one.message.attributes[REPLAY_OF] for one in received]
        if received:
            ack(AcknowledgeRequest(subscription=subscription, ack_ids=[one.ack_id for one in received]), timeout=30)
    if sorted(found) != sorted(letter.identity for letter in letters):
        raise RuntimeError(f"{len(found)} messages came of {len(letters)} letters, {len(set(found))} of them different")


def _letters(count: int, seed: int) -> Iterator[DeadLetter]:
    """Return letters of changes that were committed just now, as the consumer cuts them out."""
    maker, failed_at = change_maker(), Nanoseconds(time.time_ns())
    made = 0
    for record in Workload(count, seed, began=failed_at // 1_000).records(count):
        header, changes = maker.changes(record)
        for ordering_key, change in changes[: count - made]:
            made += 1
            data = decode_batch(encode_batch(header, [change])).cut(0)
            yield DeadLetter(
                data=data,
                attributes={"table": header.table, "source": header.source, "change_count": "1"},
                ordering_key=ordering_key,
                reason=Reason.VALUE_DOES_NOT_FIT,
                detail="column visits of type INT64: not a whole number",
                failed_at=failed_at,
                failed_in="cdc_consumer",
                table=header.table,
                key=json.dumps([int(json.loads(change.key)["id"])]),
                sequence=change.sequence,
                commit_timestamp=change.commit_timestamp,
            )


def _fill(path: Path, letters: Sequence[DeadLetter]) -> None:
    database = open_database(f"sqlite:///{path}")
    with closing(database):
        store = SqlDeadLetterStore(database)
        for start in range(0, len(letters), _KEPT_AT_ONCE):
            some = letters[start : start + _KEPT_AT_ONCE]
            arrivals = [Arrival(letter=one, message_id=one.identity) for one in some]
            store.keep(arrivals, Nanoseconds(time.time_ns()))


def _mirror(dataset: BigQueryDataset, letters: Sequence[DeadLetter]) -> None:
    """Make the tables' mirrors, with an older change of every row that a letter is of."""
    rows = {row for letter in letters if (row := content_of(letter).row) is not None}
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    for table in TABLES:
        (source,) = {row.source for row in rows if row.source.endswith(f"/tables/{table}")}
        dataset.query(
            f"CREATE TABLE {table} ({columns}, {SEQUENCE_COLUMN} STRING, PRIMARY KEY (id) NOT ENFORCED) "
            f"CLUSTER BY id OPTIONS (labels = [('{MIRROR_OF}', '{label_of(source)}')])"
        )
        keys = sorted(json.loads(row.key)[0] for row in rows if row.source == source)
        for start in range(0, len(keys), _INSERTED_AT_ONCE):
            values = ", ".join(f"({key}, '{four_sections(1)}')" for key in keys[start : start + _INSERTED_AT_ONCE])
            dataset.query(f"INSERT INTO {table} (id, {SEQUENCE_COLUMN}) VALUES {values}")
