"""The consumer's commands end as any other program does: at a signal, and where nothing reads what they print."""

import signal

import pytest

from services.cdc_consumer.wiring import commands


@pytest.mark.parametrize("name", ["status", "doctor"])
def test_a_command_that_only_asks_leaves_the_signals_as_they_are_and_says_that_it_was_stopped(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during: list[object] = []

    def interrupted(*_words: object, **_named: object) -> int:
        during.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, name, interrupted)

    assert commands.command([name], {}) == 1
    assert during == before
    assert capsys.readouterr().err == "error: stopped before the end\n"


def test_that_nothing_reads_the_output_is_left_to_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_off(*_words: object, **_named: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(commands, "status", cut_off)

    with pytest.raises(BrokenPipeError):
        commands.command(["status"], {})
    assert capsys.readouterr().err == ""
