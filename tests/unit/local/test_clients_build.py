"""The build of the live clients names every missing tool at once."""

import shutil
import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parents[3] / "tests" / "clients" / "build.sh"


def test_every_missing_tool_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    dirname = shutil.which("dirname")
    assert bash
    assert dirname
    (tmp_path / "dirname").symlink_to(dirname)
    (tmp_path / "node").write_text("#!/bin/sh\n")
    (tmp_path / "node").chmod(0o755)

    ended = subprocess.run([bash, BUILD], capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})

    assert ended.returncode != 0
    first, *named = ended.stderr.splitlines()
    assert first == "make clients needs tools that are not on PATH:"
    assert [line.split()[0].rstrip(":") for line in named] == ["go", "java", "javac", "mvn", "npm"]
    assert all("apt-get install" in line or "https://" in line for line in named)
