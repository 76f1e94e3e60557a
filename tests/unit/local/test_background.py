"""Whether the platform is up is never guessed."""

import json
import os
from pathlib import Path

from deploy.local.platform.background import BackgroundPlatform


def test_down_with_nothing_up_says_so(tmp_path: Path) -> None:
    said: list[str] = []

    assert BackgroundPlatform(tmp_path / "up").down(said.append) == 0
    assert said == ["nothing is up"]


def test_what_a_dead_supervisor_left_behind_is_not_up_and_nobody_is_killed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    state = {"supervisor": os.getpid(), "sessions": [], "flow": None, "text": ""}
    (tmp_path / "state.json").write_text(json.dumps(state))
    said: list[str] = []

    platform = BackgroundPlatform(tmp_path)

    assert platform.flow() is None
    assert platform.down(said.append) == 0
    assert said == ["nothing is up"]
