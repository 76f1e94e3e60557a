"""What the Dockerfile promises, as far as its text shows it; `make containers` builds every image and inspects it."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from deploy.local.platform.emulators import ROOT

FILE = ROOT / "deploy/Dockerfile"
SERVICES = ("bigtable_reader", "cdc_consumer", "dead_letter", "spanner_reader")
EMULATORS = ("bigquery", "bigtable_streams")
WITH_SHARED: Mapping[str, Sequence[str]] = {
    **{name: (f"services/{name}",) for name in SERVICES},
    "toolbox": ("services",),
    "local": ("emulators", "deploy"),
}
"""What each image has of the code, beside what is shared."""
OURS = (*WITH_SHARED, *EMULATORS)
TARGETS = (*OURS, "emulators_of_sdk")
BASE = "$BASE"
BUILDS = [*map(Path, ("deploy/Dockerfile", "deploy/local/emulators_of_sdk/compose.yaml"))]
BUILDS += map(Path, ("README.md", "docs/how-to/run-in-containers.md"))
BUILDS += [Path("emulators", name, "README.md") for name in EMULATORS]
KNOWN_OPTIONS = ("--from=", "--mount=type=cache,", "--interval=", "--timeout=", "--start-period=")

Instruction = tuple[str, str]


def instructions() -> Sequence[Instruction]:
    """Return the instructions, each in one line, without comments."""
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> Mapping[str, Sequence[Instruction]]:
    """Return the instructions of every stage, those of the stages that it is made from before its own."""
    found: dict[str, list[Instruction]] = {BASE: []}
    for name, rest in instructions()[1:]:  # the first says what BASE is
        if name == "FROM":
            base, _, stage = rest.split()
            found[stage] = [*found[base]]
        else:
            found[stage].append((name, rest))
    return found


def of(stage: str, name: str) -> Sequence[str]:
    """Return what all instructions of one name say in a stage."""
    return [rest for each, rest in stages()[stage] if each == name]


def packages_of(image: str) -> str:
    """Return which requirements an image is made with."""
    return "emulators" if image in EMULATORS else image


def test_every_image_is_a_target_of_one_dockerfile() -> None:
    assert [*ROOT.glob("[!.]*/**/Dockerfile")] == [FILE]
    copied = {name for _, rest in instructions() for name in re.findall(r"^--from=(\w+)", rest)}
    parents = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    assert stages().keys() - copied - parents == set(TARGETS)


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    ran = subprocess.run([hadolint, FILE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.parametrize("name", WITH_SHARED)
def test_an_image_is_made_of_its_services_and_what_is_shared_packages_first(name: str) -> None:
    assert [rest.split()[:-1] for rest in of(name, "COPY")] == [
        [f"--from={name}_packages", "/opt/venv"],
        ["--from=shared", "/app"],
        *(["--from=code", f"/app/{part}"] for part in WITH_SHARED[name]),
    ]
    assert of(f"{name}_packages", "COPY") == [f"requirements/{name}.txt /requirements.txt"]
    assert of("shared", "COPY") == ["services/__init__.py services/", "shared shared"]


@pytest.mark.parametrize("name", EMULATORS)
def test_the_image_of_an_emulator_is_made_of_its_packages_and_its_code_only(name: str) -> None:
    assert [rest.split() for rest in of(name, "COPY")] == [
        ["--from=emulators_packages", "/opt/venv", "/opt/venv"],
        ["--from=code", "/app/emulators/*.py", "emulators/"],
        ["--from=code", f"/app/emulators/{name}", f"emulators/{name}"],
    ]
    assert of("emulators_packages", "COPY") == ["requirements/emulators.txt /requirements.txt"]


def test_the_toolbox_starts_the_launcher() -> None:
    assert of("toolbox", "ENTRYPOINT") == ['["/usr/bin/tini", "--", "python", "-m", "services"]']


def test_the_archive_of_classes_is_made_by_root_once_the_code_is_there() -> None:
    names = [*stages()["cdc_consumer"]]
    made = names.index(("RUN", "python -m services.cdc_consumer.wiring.class_archive"))
    assert names[made - 2][1].endswith("services/cdc_consumer")
    assert (names[made - 1], names[made + 1]) == (("USER", "0:0"), ("USER", "10001:10001"))


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_does_not_run_as_root_and_hands_signals_on(name: str) -> None:
    assert of(name, "USER")[-1] == "10001:10001"
    assert of(name, "ENTRYPOINT")[-1].startswith('["/usr/bin/tini", "--"')


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_reports_how_it_is(name: str) -> None:
    assert "shared.runtime.probe" in of(name, "HEALTHCHECK")[-1]


@pytest.mark.parametrize("name", OURS)
def test_an_image_is_labelled_with_what_it_is(name: str) -> None:
    labels = re.findall(r"org\.opencontainers\.image\.(\w+)=", " ".join(of(name, "LABEL")))
    assert sorted(labels) == ["description", "revision", "title", "version"]


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_run_again_because_the_revision_is_another(name: str) -> None:
    after = [*stages()[name]]
    while after and after[0] != ("ARG", "REVISION=unknown"):
        after.pop(0)
    assert "RUN" not in {each for each, _ in after}


@pytest.mark.parametrize("name", OURS)
def test_packages_are_the_locked_ones_and_are_installed_in_a_stage_of_their_own(name: str) -> None:
    installing = [
        rest for rest in of(f"{packages_of(name)}_packages", "RUN") if rest.endswith(" $INSTALL /requirements.txt")
    ]
    (options,) = of("packages", "ENV")
    assert len(installing) == 1
    assert re.search(r" install --no-deps .*--require-hashes --requirement\"$", options)
    assert "INSTALL" not in " ".join(rest for _, rest in stages()[name])


def test_the_base_has_a_digest_which_the_compose_files_repeat() -> None:
    name, rest = instructions()[0]
    pinned = rest.removeprefix("BASE=")
    assert name == "ARG"
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", pinned)
    for file in ("docker-compose.yaml", "deploy/local/emulators_of_sdk/compose.yaml"):
        assert f"BASE: ${{BASE:-{pinned}}}\n" in (ROOT / file).read_text()


def test_every_base_is_the_same_and_nothing_asks_for_a_newer_builder_than_buildkit_of_20_10() -> None:
    assert {rest.split()[0] for name, rest in instructions() if name == "FROM"} <= {BASE, *stages()}
    assert not re.search(r"^#\s*syntax=|<<", FILE.read_text(), re.MULTILINE)
    options = [one for _, rest in instructions() for one in takewhile(lambda word: word.startswith("--"), rest.split())]
    assert [one for one in options if not one.startswith(KNOWN_OPTIONS)] == []


@pytest.mark.parametrize("file", BUILDS, ids=str)
def test_a_build_that_is_shown_asks_for_the_builder_that_knows_such_mounts(file: Path) -> None:
    lines = re.sub(r"\\\n#?\s*", "", (ROOT / file).read_text()).splitlines()
    shown = [line for line in lines if re.search(r"\bdocker build |\bdocker compose .*--build", line)]
    assert shown
    assert [line for line in shown if "DOCKER_BUILDKIT=1 " not in line] == []
