"""Every module that has a cost is there."""

import json
from pathlib import Path

from tests.schedule import COSTS


def test_every_module_with_a_cost_exists() -> None:
    root = COSTS.parent.parent

    assert [name for name in json.loads(COSTS.read_text()) if not (root / Path(name)).is_file()] == []
