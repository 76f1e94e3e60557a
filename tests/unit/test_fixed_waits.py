"""No test waits for seconds to pass where it could wait for what it waits for."""

from pathlib import Path

import pytest

from tests.fixed_waits import VIRTUAL_TIME, fixed_waits

ROOT = Path(__file__).resolve().parents[2]


def found_in(root: Path, **modules: str) -> list[tuple[int, str]]:
    """Return line and length of what is found in a folder of these modules."""
    for name, text in modules.items():
        (root / name).with_suffix(".py").write_text(text, encoding="utf-8")
    return [(one.line, one.length) for one in fixed_waits(root, ".")]


def test_every_fixed_wait_of_the_tests_has_its_reason_beside_it() -> None:
    assert fixed_waits(ROOT, "tests") == []


@pytest.mark.parametrize(
    ("call", "length"),
    [
        ("time.sleep({})", "2"),
        ("await_ = asyncio.sleep({})", "1.5"),
        ("stop.wait({})", "timedelta(seconds=3)"),
        ("self._over.wait({})", "2"),
        ("stop.wait(timeout={})", "5"),
        ("asyncio.sleep(delay={})", "2"),
        ("LEASE = timedelta(minutes=1)\ntime.sleep({})", "0.5 * LEASE.total_seconds() + 1"),
        ("from constants import LONG\ntime.sleep({})", "LONG"),
    ],
)
def test_a_pause_of_more_than_a_second_or_of_constants_is_found(tmp_path: Path, call: str, length: str) -> None:
    line = call.count("\n") + 1
    assert found_in(tmp_path, module=call.format(length)) == [(line, length)]


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(2)  # the emulator tells nobody",
        "# the emulator tells nobody\ntime.sleep(2)",
        "time.sleep(0.5)",
        "assert stop.wait(60)",
        "while not over.wait(5):\n    pass",
        "time.sleep(seconds)",
    ],
)
def test_a_reason_a_short_pause_and_an_upper_limit_are_not_found(tmp_path: Path, text: str) -> None:
    assert found_in(tmp_path, module=text) == []


@pytest.mark.parametrize(
    "runs", [f"from {VIRTUAL_TIME} import run_in_virtual_time", "async def test_it() -> None: ..."]
)
def test_virtual_time_costs_nothing_in_a_module_that_runs_in_it_and_in_what_that_imports(
    tmp_path: Path, runs: str
) -> None:
    pause = "asyncio.sleep(60)"
    runs = f"from world import World\n{runs}\n{pause}"

    assert found_in(tmp_path, runs=runs, world=pause, apart=pause) == [(1, "60")]
