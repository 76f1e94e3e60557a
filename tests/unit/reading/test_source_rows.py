"""How any reader answers what is asked of its rows, whatever a request meets.

The answers themselves, as the consumer's client reads them from a process: `tests/integration/test_source_rows.py`.
"""

import asyncio
import io

import pytest

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Done, Failed, ListTables, Tables, encode_line
from shared.reading.source_rows import answer_requests
from tests.integration.answering_source import Things

ANSWER = encode_line(Tables(("Things",), retention=7)) + encode_line(Done("", ""))


class Failing(Things):
    """Rows of which nothing can be read at first."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def tables(self) -> list[str]:
        """Fail, or return the one table."""
        if self._errors:
            raise self._errors.pop()
        return ["Things"]


def answered(source: Things, *requests: bytes, out: io.BytesIO | None = None) -> bytes:
    out = out or io.BytesIO()
    asyncio.run(answer_requests(source, io.BytesIO(b"".join(requests)), out, retention=7))
    return out.getvalue()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (TransientError("UNAVAILABLE"), Failed("UNAVAILABLE", transient=True)),
        (MisconfiguredError("made-up", "no right"), Failed("no right [made-up]")),
    ],
)
def test_an_error_is_an_answer_and_the_next_request_is_answered(error: Exception, answer: Failed) -> None:
    assert answered(Failing(error), *[encode_line(ListTables())] * 2) == encode_line(answer) + ANSWER


def test_a_request_of_a_newer_version_is_answered_with_what_to_do() -> None:
    answer, more = answered(Things(), b'{"is":"paint"}\n', encode_line(ListTables())).split(b"\n", 1)
    assert b"upgrade the reader first" in answer
    assert more == ANSWER


def test_it_ends_when_the_client_no_longer_takes_answers() -> None:
    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    assert answered(Things(), *[encode_line(ListTables())] * 2, out=Gone()).count(b"\n") == 1
