"""What `make install`, and each target before it, say where something is missing: a cause and a fix come last."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NOBODY = 65_534


def test_the_script_that_names_what_is_missing_needs_nothing_that_is_installed(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-I", ROOT / "deploy/local/platform/needs.py"],
        env={"PATH": str(tmp_path), "CLOUDSDK_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    java, sdk = ran.stderr.splitlines()
    assert java.startswith("missing: Java 17")
    assert "lacks the Spanner emulator and the Pub/Sub emulator and the Bigtable emulator" in sdk


def install(directory: Path, python: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    (directory / "requirements").mkdir(parents=True, exist_ok=True)
    (directory / "deploy").mkdir(exist_ok=True)
    (directory / "requirements/development.txt").write_text(f"nothing==1.0 --hash=sha256:{'0' * 64}\n")
    shutil.copy(ROOT / "deploy/install.sh", directory / "deploy")
    return subprocess.run(
        ["deploy/install.sh", python],
        cwd=directory,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_an_install_without_a_network_reports_so_and_names_the_settings_of_pip(tmp_path: Path) -> None:
    ran = install(tmp_path / "a path", sys.executable, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")

    assert ran.returncode == 1
    assert "installing 1 packages into .venv: about 1.3 GB" in ran.stdout
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("FAILED: cannot reach the package index: set PIP_INDEX_URL")


RETRY = "WARNING: Retrying (Retry(total=4)) after connection broken by"
NOTHING_FOUND = """\
ERROR: Could not find a version that satisfies the requirement nothing==1.0 (from versions: none)
ERROR: No matching distribution found for nothing==1.0"""
WHAT_PIP_SAYS = {
    "hashes": f"""{RETRY} 'ReadTimeoutError("Read timed out. (read timeout=15)")': /simple/nothing/
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions,
please update the hashes. Otherwise, examine the package contents carefully; someone may have tampered with them.
    nothing==1.0:
        Expected sha256 00
             Got        11""",
    "disk": f"""{RETRY} 'ReadTimeoutError("Read timed out. (read timeout=15)")': /simple/nothing/
ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device""",
    "certificate": f"""{RETRY} 'SSLError(SSLCertVerificationError(1, 'certificate verify failed'))': /simple/nothing/
Could not fetch URL https://i/simple/nothing/: There was a problem confirming the ssl certificate: - skipping
{NOTHING_FOUND}""",
    "network": f"""{RETRY} 'NewConnectionError("Connection refused")': /simple/nothing/
{NOTHING_FOUND}""",
    "timeout": """ERROR: Exception:
Traceback (most recent call last):
ReadTimeoutError: HTTPSConnectionPool(host='i', port=443): Read timed out.""",
    "other": f"""{RETRY} 'ReadTimeoutError("Read timed out. (read timeout=15)")': /simple/nothing/
ERROR: Failed building wheel for nothing""",
}


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("hashes", "another content than requirements/development.txt names"),
        ("disk", "no space is left: .venv needs about 1.3 GB"),
        ("certificate", "set PIP_CERT to"),
        ("network", "cannot reach the package index: set PIP_INDEX_URL"),
        ("timeout", "cannot reach the package index: set PIP_INDEX_URL"),
        ("other", "pip could not install requirements/development.txt: see above"),
    ],
)
def test_an_install_names_the_cause_that_pip_ends_with_and_not_what_it_has_retried(
    tmp_path: Path, case: str, cause: str
) -> None:
    (tmp_path / "pip.says").write_text(WHAT_PIP_SAYS[case] + "\n")
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;\n'
        f'*"-m pip"*) cat "{tmp_path}/pip.says" >&2; exit 1 ;;\nesac\n'
    )
    python.chmod(0o755)
    ran = install(tmp_path / "clone", str(python))

    assert ran.returncode == 1
    *above, last = ran.stderr.splitlines()
    assert last.startswith("FAILED: ")
    assert cause in last
    assert above == WHAT_PIP_SAYS[case].splitlines(), "pip's own words are above"


def test_an_install_in_a_checkout_that_cannot_be_written_reports_so_and_where_to_clone() -> None:
    with tempfile.TemporaryDirectory() as name:  # which every user may enter, unlike a path of pytest's
        directory = Path(name)
        shutil.copy(ROOT / "deploy/install.sh", directory)
        (directory / "python").write_text("#!/bin/sh\nexit 0\n")
        (directory / "python").chmod(0o755)
        directory.chmod(0o555)
        ran = subprocess.run(
            ["./install.sh", "./python"],
            cwd=directory,
            env={"PATH": os.environ["PATH"]},
            user=_NOBODY if os.geteuid() == 0 else None,  # root may write anywhere
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"FAILED: {directory} cannot be written: make creates .venv and .run here; "
        "clone into a directory that you can write\n"
    )


@pytest.mark.parametrize("target", ["run", "up", "test", "clients"])
def test_a_target_that_starts_emulators_names_what_is_missing_before_it_installs_anything(
    tmp_path: Path, target: str
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "deploy/local/platform").mkdir(parents=True)
    (tmp_path / "deploy/local/platform/needs.py").write_text("#!/bin/sh\necho 'missing: Java' >&2; exit 1\n")
    (tmp_path / "deploy/install.sh").write_text("#!/bin/sh\ntouch installed\n")
    for script in ("deploy/local/platform/needs.py", "deploy/install.sh"):
        (tmp_path / script).chmod(0o755)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
    python.chmod(0o755)
    ran = subprocess.run(
        ["make", target, f"PYTHON={python}"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},  # without the flags of a make that runs this
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ran.returncode != 0
    assert "missing: Java" in ran.stderr
    assert not (tmp_path / "installed").exists()


@pytest.mark.parametrize(
    ("python", "environment", "cause"),
    [
        ("", {}, "FAILED: Python 3.11 or newer is needed: make install PYTHON=/path/to/python3.11"),
        ("/no/such python", {}, "there is no /no/such python"),
    ],
)
def test_an_install_without_a_python_reports_how_to_name_one(
    tmp_path: Path, python: str, environment: Mapping[str, str], cause: str
) -> None:
    ran = install(tmp_path, python, **environment)

    assert ran.returncode == 1
    assert cause in ran.stderr.splitlines()[-1]
