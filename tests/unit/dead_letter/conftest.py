"""What tests of the dead-letter service share: a person at the command line, and the API over three dead letters."""

import pytest

from tests.unit.dead_letter.asgi import Api, with_dead_letters
from tests.worlds.replaying import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def api() -> Api:
    return with_dead_letters(Api())
