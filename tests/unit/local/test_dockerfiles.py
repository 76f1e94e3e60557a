"""What every Dockerfile of the repository promises, as far as its text shows it; `make containers` builds and asks."""

import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from deploy.local.emulators import ROOT

SERVICES = ("bigtable_reader", "cdc_consumer", "dead_letter", "spanner_reader")
FILES = sorted(one.relative_to(ROOT) for part in ("services", "deploy") for one in (ROOT / part).rglob("Dockerfile"))
OURS = [Path(f"services/{name}/Dockerfile") for name in SERVICES]
BUILDS = [*OURS, *map(Path, ("deploy/local/Dockerfile", "deploy/local/emulators_of_sdk/compose.yaml"))]
BUILDS += map(Path, ("README.md", "docs/containers.md"))
KNOWN_OPTIONS = ("--from=", "--mount=type=cache,", "--interval=", "--timeout=", "--start-period=")


def instructions(file: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions, each in one line, without comments."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def of(file: Path, name: str) -> list[str]:
    """Return what all instructions of one name say."""
    return [rest for each, rest in instructions(file) if each == name]


def test_every_service_has_a_dockerfile_and_so_has_the_local_platform() -> None:
    local = [Path("deploy/local/Dockerfile"), Path("deploy/local/emulators_of_sdk/Dockerfile")]
    assert [*local, *OURS] == FILES


@pytest.mark.parametrize("file", FILES, ids=str)
def test_hadolint_finds_nothing(file: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    ran = subprocess.run([hadolint, file], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_made_of_one_service_and_what_is_shared(name: str) -> None:
    copied = [rest.split()[:-1] for rest in of(Path(f"services/{name}/Dockerfile"), "COPY")]
    assert copied == [
        [f"requirements/{name}.txt"],
        ["--from=packages", "/opt/venv"],
        ["services/__init__.py"],
        ["shared"],
        [f"services/{name}"],
    ]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_an_image_does_not_run_as_root_and_hands_signals_on(file: Path) -> None:
    assert of(file, "USER")[-1] == "10001:10001"
    assert of(file, "ENTRYPOINT")[-1].startswith('["/usr/bin/tini", "--"')


@pytest.mark.parametrize("file", OURS, ids=str)
def test_an_image_says_what_it_is_and_how_it_is(file: Path) -> None:
    assert "shared.runtime.probe" in of(file, "HEALTHCHECK")[-1]
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", of(file, "LABEL")[-1]))
    assert labels == {"title", "description", "version", "revision"}


@pytest.mark.parametrize("file", [*OURS, Path("deploy/local/Dockerfile")], ids=str)
def test_packages_are_the_locked_ones_and_are_installed_in_a_stage_of_their_own(file: Path) -> None:
    stages = [number for number, (name, _) in enumerate(instructions(file)) if name == "FROM"]
    (installing,) = [number for number, (_, rest) in enumerate(instructions(file)) if " install --no-deps " in rest]
    assert len(stages) == 2
    assert stages[0] < installing < stages[1]
    assert "--require-hashes --requirement /requirements.txt" in instructions(file)[installing][1]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_base_is_the_same_and_nothing_asks_for_a_newer_builder_than_buildkit_of_20_10(file: Path) -> None:
    assert {rest.split()[0] for rest in of(file, "FROM")} == {"python:3.11-slim-bookworm"}
    text = (ROOT / file).read_text()
    assert not re.search(r"^#\s*syntax=|<<", text, re.MULTILINE)
    options = [
        one for _, rest in instructions(file) for one in takewhile(lambda word: word.startswith("--"), rest.split())
    ]
    assert [one for one in options if not one.startswith(KNOWN_OPTIONS)] == []


@pytest.mark.parametrize("file", BUILDS, ids=str)
def test_a_build_that_is_shown_asks_for_the_builder_that_knows_such_mounts(file: Path) -> None:
    lines = re.sub(r"\\\n#?\s*", "", (ROOT / file).read_text()).splitlines()
    shown = [line for line in lines if re.search(r"\bdocker build |\bdocker compose .*--build", line)]
    assert shown
    assert [line for line in shown if "DOCKER_BUILDKIT=1 " not in line] == []
