"""A source's rows through a real child process: what it answers, what it refuses, and how it ends."""

import os
import threading
from typing import Final

import pytest

from services.cdc_consumer.adapters.source_rows import opened_source
from shared.contracts.change_batch import decode_batch
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Done
from shared.runtime.stop import Stop
from tests.integration.answering_source import AT, HEADER, ROWS, SEQUENCE, key_of

pytestmark = pytest.mark.integration

COMMAND: Final = "python -m tests.integration.answering_source"


def test_all_rows_come_as_the_batches_they_would_be_published_in() -> None:
    with opened_source(COMMAND, os.environ, Stop()) as source:
        *batches, done = source.read("Things", AT)

        assert done == Done(AT, SEQUENCE, rows=len(ROWS))
        decoded = [decode_batch(batch) for batch in batches if isinstance(batch, bytes)]
        assert len(decoded[0]) == 0
        assert {batch.header for batch in decoded} == {HEADER}
        notes = [bytes(row) for batch in decoded for row in batch.rows]
        assert notes[1] == b'{  "Note": "line\\nbreak 2" }'
        assert len(notes) == len(ROWS)


def test_several_requests_are_answered_one_after_the_other() -> None:
    with opened_source(COMMAND, os.environ, Stop()) as source:
        assert source.tables() == ("Things",)
        batch, _done = source.describe("Things")
        assert decode_batch(batch).header == HEADER
        *_batches, done = source.read("Things", after=key_of(990))
        assert isinstance(done, Done)
        assert done.rows == 10
        batches, done = source.read_keys("Things", [key_of(1), key_of(5000)])
        assert [len(decode_batch(batch)) for batch in batches] == [1]
        done = source.publish("Things", [key_of(1), key_of(5000)])
        assert (done.rows, done.absent) == (1, 1)


def test_what_is_left_of_an_answer_that_was_given_up_is_none_of_the_next_one() -> None:
    with opened_source(COMMAND, os.environ, Stop()) as source:
        for _table in range(2):
            next(source.read("Things"))
        assert source.tables() == ("Things",)
        *_batches, done = source.read("Things", after=key_of(990))
        assert isinstance(done, Done)
        assert done.rows == 10


def test_a_failure_is_transient_or_permanent_and_the_next_request_is_answered() -> None:
    with opened_source(COMMAND, os.environ, Stop()) as source:
        with pytest.raises(TransientError, match="too busy"):
            source.describe("Busy")
        with pytest.raises(MisconfiguredError, match="no table Nothing"):
            list(source.read("Nothing"))
        assert source.tables() == ("Things",)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{COMMAND} nonsense", "does not understand"),
        (f"{COMMAND} gone", "exit code 7"),
        ("/nowhere/command rows", "cannot be run .*SOURCE_ROWS, or --source"),
        ("", "is empty"),
        ("'", "not a command line"),
    ],
)
def test_a_command_that_is_no_source_is_refused(command: str, message: str) -> None:
    with pytest.raises(MisconfiguredError, match=message), opened_source(command, os.environ, Stop()) as source:
        source.tables()


def test_a_stop_ends_what_is_waited_for() -> None:
    stop = Stop()
    waiting = threading.Timer(1.0, stop.request)
    waiting.start()
    try:
        with (
            pytest.raises(TransientError, match="stop"),
            opened_source(f"{COMMAND} silent", os.environ, stop) as source,
        ):
            source.tables()
    finally:
        waiting.join()


def test_a_reading_that_is_given_up_leaves_no_process_behind() -> None:
    with opened_source(COMMAND, os.environ, Stop()) as source:
        reading = source.read("Things")
        next(reading)
        child = source._child

    assert child.returncode is not None
