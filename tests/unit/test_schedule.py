"""The order of the test modules, and what is added up of their seconds."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.schedule import COSTS, TOGETHER, costly_first, module_of, scope_of, seconds_by_folder


def test_costly_modules_come_first_and_the_tests_of_a_module_stay_in_order(request: pytest.FixtureRequest) -> None:
    here = module(request)
    items = [item for item in request.session.items if item.nodeid.startswith(here)]
    others = [item for item in request.session.items if not item.nodeid.startswith(here)][:10]
    mixed = [*others, *items]

    costly_first(mixed, {here: 7.0})

    assert mixed == [*items, *others]


def test_one_worker_takes_a_module_and_a_folder_whose_modules_share_a_pipeline() -> None:
    assert scope_of("tests/unit/test_a.py::test_b[c]") == "tests/unit/test_a.py"
    for folder in TOGETHER:
        assert scope_of(f"{folder}/test_a.py::test_b") == scope_of(f"{folder}/test_c.py::test_d") == folder
        assert list((COSTS.parent.parent / folder).glob("test_*.py")), "the folder holds tests"


def test_the_cost_of_a_folder_that_one_worker_takes_is_the_sum_of_its_modules() -> None:
    alone, first, second = "tests/e2e/test_alone.py", f"{TOGETHER[0]}/test_a.py", f"{TOGETHER[0]}/test_b.py"
    items = [SimpleNamespace(nodeid=f"{name}::test") for name in (first, alone, second)]

    costly_first(cast("list[pytest.Item]", items), {alone: 7.0, first: 4.0, second: 4.0})

    assert [module_of(one.nodeid) for one in items] == [first, second, alone]


def test_the_seconds_of_modules_are_added_up_by_folder() -> None:
    spent = {"tests/unit/local/test_a.py": 1.0, "tests/unit/test_b.py": 2.0, "tests/e2e/test_c.py": 4.0}

    assert seconds_by_folder(spent) == {"tests/unit": 3.0, "tests/e2e": 4.0}


def test_every_module_with_a_cost_exists() -> None:
    root = COSTS.parent.parent

    assert [name for name in json.loads(COSTS.read_text()) if not (root / Path(name)).is_file()] == []


def module(request: pytest.FixtureRequest) -> str:
    """Return the path of this module, as in the ids of its tests."""
    nodeid: str = request.node.nodeid
    return nodeid.partition("::")[0]
