"""No test waits for seconds to pass where it could wait for what it waits for."""

from pathlib import Path

from tests.fixed_waits import fixed_waits


def test_every_fixed_wait_of_the_tests_has_its_reason_beside_it() -> None:
    assert fixed_waits(Path(__file__).resolve().parents[2], "tests") == []


def test_a_pause_without_a_reason_is_found(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("time.sleep(2)\ntime.sleep(2)  # the emulator is silent\n", encoding="utf-8")

    assert [str(one) for one in fixed_waits(tmp_path, ".")] == ["module.py:1 waits for 2"]
