"""The documents that are made from code say what the code says, and links between documents lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.documents.made import DOCS, DOCUMENTS

_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
_DOCUMENTS = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.parent.glob("*.md"))]


@pytest.mark.parametrize("file", DOCUMENTS)
def test_a_document_that_is_made_from_code_is_up_to_date(file: str) -> None:
    assert (DOCS / file).read_text(encoding="utf-8") == DOCUMENTS[file](), f"docs/{file} is old: make docs"


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_are_there(document: Path) -> None:
    for path, heading in _LINK.findall(document.read_text(encoding="utf-8")):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} leads to {path}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]
            assert heading[1:] in anchors, f"{document.name} leads to {path}{heading}"


def test_the_readme_is_read_in_one_go() -> None:
    assert len((DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
