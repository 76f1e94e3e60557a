"""`make release`: the files of a release in build/release, if version, changelog, chart and tag agree.

They are the chart, an SBOM for each image, and SHA256SUMS. With a registry, the chart names the images there by their
digests, which `docker buildx build --metadata-file build/images/NAME.json` has written.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.release.sbom import ROOT, TOOLS, write_sboms

CHART: Final = "deploy/helm/millrace"
SPARK_SUBMIT: Final = "deploy/spark_submit/consumer.conf"
SERVICES: Final = ("bigtable_reader", "cdc_consumer", "dead_letter", "spanner_reader")


def version(root: Path) -> str:
    """Return the version of pyproject.toml."""
    found: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return found


def disagreements(root: Path) -> Iterator[str]:
    """Yield what names another version than pyproject.toml; an unreleased section of the changelog names none."""
    wanted = version(root)
    chart = (root / CHART / "Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        found = re.search(rf"^{key}: \"?([^\"\n]*)", chart, re.MULTILINE)
        if found is None or found[1] != wanted:
            yield f"{CHART}/Chart.yaml: `{key}` is not {wanted}, the version of pyproject.toml"
    if f"/cdc_consumer:{wanted}\n" not in (root / SPARK_SUBMIT).read_text():
        yield f"{SPARK_SUBMIT}: the image is not of version {wanted}"
    headings = re.findall(r"^## (.*)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    if released and not re.fullmatch(rf"{re.escape(wanted)} - \d{{4}}-\d\d-\d\d", released[0]):
        yield f"CHANGELOG.md: the newest released section is `{released[0]}`, not `{wanted} - YYYY-MM-DD`"


def refusals(root: Path) -> Iterator[str]:
    """Yield why no release can be made of this commit."""
    yield from disagreements(root)
    wanted = version(root)
    if not re.search(rf"^## {re.escape(wanted)} - ", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no section `{wanted} - YYYY-MM-DD`: name the section `Unreleased` so"
    if f"v{wanted}" not in _git(root, "tag", "--points-at", "HEAD").split():
        yield f"this commit has not the tag v{wanted}: git tag --annotate v{wanted}"
    if changed := _git(root, "status", "--porcelain"):
        yield f"files differ from the commit:\n{changed}"


def write_chart(directory: Path, helm: str, registry: str, digests: Mapping[str, str]) -> None:
    """Package the chart; with digests, its images are those of the registry that have them."""
    with tempfile.TemporaryDirectory() as scratch:
        chart = shutil.copytree(ROOT / CHART, Path(scratch) / "millrace")
        if digests:
            values = (chart / "values.yaml").read_text()
            values, registries = re.subn(r"(?m)^  registry: \S+", f"  registry: {registry}", values)
            values, maps = re.subn(r"(?m)^  digests: \{\}", f"  digests: {json.dumps(digests)}", values)
            assert (registries, maps) == (1, 1)
            (chart / "values.yaml").write_text(values)
        command = [helm, "package", str(chart), "--destination", str(directory)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def pushed_digests(directory: Path) -> Mapping[str, str]:
    """Return the digest of each service's image; SystemExit if it has not been pushed."""
    missing = [name for name in SERVICES if not (directory / f"{name}.json").exists()]
    if missing:
        sys.exit(f"FAILED: {directory} lacks the digests of {', '.join(missing)}: push these images first")
    return {name: json.loads((directory / f"{name}.json").read_text())["containerimage.digest"] for name in SERVICES}


def main(registry: str = "") -> None:
    """Refuse, or write the files."""
    if refused := list(refusals(ROOT)):
        sys.exit("\n".join(["FAILED: no release can be made of this commit", *refused]))
    digests = pushed_digests(ROOT / "build/images") if registry else {}
    helm = shutil.which("helm") or str(TOOLS / "helm")
    directory = ROOT / "build/release"
    shutil.rmtree(directory, ignore_errors=True)
    write_sboms(directory)
    write_chart(directory, helm, registry, digests)
    files = sorted(directory.iterdir())
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (directory / "SHA256SUMS").write_text("".join(sums))
    print(f"{len(files)} files and SHA256SUMS of version {version(ROOT)} are in {directory.relative_to(ROOT)}")


def _git(root: Path, *words: str) -> str:
    git = shutil.which("git") or sys.exit("FAILED: git is missing")
    return subprocess.run([git, *words], cwd=root, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
