"""Version, chart, changelog and tag agree, and no release is made where they do not."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.release.files import CHART, SPARK_SUBMIT, disagreements, refusals, version
from deploy.release.sbom import IMAGES, ROOT, locked

FILES = ("pyproject.toml", "CHANGELOG.md", f"{CHART}/Chart.yaml", SPARK_SUBMIT)


def git(root: Path, *words: str) -> None:
    """Run git as an author that no machine has to know."""
    options = ("user.name=a", "user.email=a@example.com", "commit.gpgsign=false", "tag.gpgsign=false")
    command = ["git", *(word for option in options for word in ("-c", option)), *words]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def edit(file: Path, old: str, new: str) -> None:
    """Replace what is there once."""
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree whose version has a section in the changelog."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    edit(tmp_path / "CHANGELOG.md", "## Unreleased\n", f"## {version(ROOT)} - 2026-11-27\n")
    return tmp_path


@pytest.fixture
def commit(tree: Path) -> Path:
    """Return a clone of one commit, which has the tag of its version."""
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "a release")
    git(tree, "tag", f"v{version(tree)}")
    return tree


def test_version_chart_and_changelog_agree() -> None:
    assert list(disagreements(ROOT)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        (f"{CHART}/Chart.yaml", "\nversion: ", "\nversion: 9", "`version`"),
        (f"{CHART}/Chart.yaml", "\nappVersion: ", "\nappVersion: 9", "`appVersion`"),
        (SPARK_SUBMIT, "/cdc_consumer:", "/cdc_consumer:9", SPARK_SUBMIT),
        ("CHANGELOG.md", "## 0.1.0 - ", "## 9.9.9 - ", "CHANGELOG.md"),
        ("CHANGELOG.md", " - 2026-11-27", "", "CHANGELOG.md"),
    ],
)
def test_what_names_another_version_is_named(tree: Path, file: str, old: str, new: str, named: str) -> None:
    edit(tree / file, old, new)

    (one,) = disagreements(tree)

    assert named in one


def test_a_commit_with_the_tag_of_its_version_is_a_release(commit: Path) -> None:
    assert list(refusals(commit)) == []


def test_a_tag_of_another_version_is_refused(commit: Path) -> None:
    git(commit, "tag", "--delete", f"v{version(commit)}")
    git(commit, "tag", "v9.9.9")

    (one,) = refusals(commit)

    assert f"this commit has not the tag v{version(commit)}" in one


def test_a_changelog_that_is_unreleased_is_refused(commit: Path) -> None:
    edit(commit / "CHANGELOG.md", f"## {version(commit)} - 2026-11-27\n", "## Unreleased\n")
    git(commit, "commit", "--quiet", "--all", "--amend", "--no-edit")
    git(commit, "tag", "--force", f"v{version(commit)}")

    (one,) = refusals(commit)

    assert "CHANGELOG.md has no section" in one


def test_what_is_not_committed_is_refused(commit: Path) -> None:
    (commit / "more").write_text("")

    (one,) = refusals(commit)

    assert "?? more" in one


@pytest.mark.parametrize("image", IMAGES)
def test_an_audit_of_the_requirements_of_development_is_one_of_every_image(image: str) -> None:
    assert set(packages(image)) <= set(packages("development"))


def test_every_image_has_an_sbom() -> None:
    copied = re.findall(r"^COPY requirements/(\w+)\.txt", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert sorted(copied) == sorted(IMAGES)


def packages(requirements: str) -> list[tuple[str, str]]:
    """Return name and version of all packages."""
    found = [(one.name, one.version) for one in locked((ROOT / f"requirements/{requirements}.txt").read_text())]
    assert len(found) > 20
    return found
