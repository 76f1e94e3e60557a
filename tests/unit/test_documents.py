"""The documents: generated pages are up to date, links resolve, and what they tell the reader to type exists."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import services.__main__ as launcher
from tests.documents.commands import SERVICES
from tests.documents.errors import fixed_texts
from tests.documents.made import DOCS, DOCUMENTS

ROOT: Final = DOCS.parent
ELSEWHERE: Final = ("emulators/*/*.md", "samples/*/README.md", "samples/*/*/README.md", "tests/*/README.md")
PAGES: Final = [page for there in ("docs/**/*.md", "*.md", *ELSEWHERE) for page in sorted(ROOT.glob(there))]
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)]*)?\)")
_CODE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_README_LINES: Final = 120
_TERMS: Final = 15
_WORD: Final = re.compile(r"\b[a-z]{2,}\b")
_WORDS_OF_A_MESSAGE: Final = 5
_NAMES_OF_GOOGLE: Final = {"drop_unknown_fields", "require_partition_filter", "use_table_schema"}
_CODE_FOLDERS: Final = ("services", "shared", "deploy", "emulators")
QUOTING: Final = [page for page in PAGES if page.parent.name in {"how-to", "explanation", "tutorial"}]


@pytest.mark.parametrize("file", DOCUMENTS)
def test_a_document_that_is_made_from_code_is_up_to_date(file: str) -> None:
    assert (DOCS / file).read_text(encoding="utf-8") == DOCUMENTS[file](), f"docs/{file} is old: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for path, heading in _LINK.findall(_prose(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name} leads to {path}"
        if heading:
            assert heading[1:] in _anchors(target), f"{page.name} leads to {path}{heading}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_begins_with_its_only_title(page: Path) -> None:
    text = _prose(page)

    assert re.findall(r"^# .+$", text, re.MULTILINE) == [text.splitlines()[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_has_the_reader_run_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    for words in re.findall(r"(?:`|^)make((?: [a-z0-9-]+)+)", text, re.MULTILINE):
        assert set(words.split()) <= targets, f"{page.name}: make{words}"
    for service, command in re.findall(r"python -m services\.([a-z_]+)(?: ([a-z][a-z-]*))?", text):
        assert service in SERVICES, f"{page.name}: services.{service}"
        assert not command or command in _commands(service), f"{page.name}: services.{service} {command}"
    for name, command in re.findall(r"\./millrace ([a-z-]+)(?: ([a-z]+))?", text):
        if name in launcher.SERVICES:
            service = launcher.SERVICES[name].module.removeprefix("services.")
            assert not command or command in _commands(service), f"{page.name}: ./millrace {name} {command}"
        else:
            assert name in (*launcher.OF_ALL, *launcher.CONSUMER_COMMANDS, "completion"), (
                f"{page.name}: ./millrace {name}"
            )


def test_every_page_of_a_folder_is_in_its_index() -> None:
    for index in DOCS.glob("*/index.md"):
        listed = set(re.findall(r"\]\(([a-z0-9-]+\.md)", index.read_text(encoding="utf-8")))
        pages = {page.name for page in index.parent.glob("*.md")} - {"index.md"}

        assert pages == listed or index.parent.name == "decisions", index


def test_every_message_of_the_page_on_errors_is_one_that_a_service_prints() -> None:
    messages = re.findall(r"^\| `([^`]+)` \|", (DOCS / "reference/errors.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert len(messages) > len(SERVICES)
    assert [message for message in messages if not any(message in fixed for fixed in fixed_texts())] == []


@pytest.mark.parametrize("page", QUOTING, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_events_and_labels_that_a_page_quotes_are_in_the_code(page: Path) -> None:
    names = {name.removesuffix("_total") for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", _prose(page))}

    assert names - _names() - _NAMES_OF_GOOGLE == set()


@pytest.mark.parametrize("page", QUOTING, ids=lambda path: str(path.relative_to(ROOT)))
def test_states_that_begin_a_row_of_a_page_are_states_that_the_code_prints(page: Path) -> None:
    states = set(re.findall(r"^\| \*([a-z -]+)\*", _prose(page), re.MULTILINE))

    assert states - fixed_texts() == set()


@pytest.mark.parametrize(
    "page", [page for page in QUOTING if page.parent.name != "explanation"], ids=lambda path: path.name
)
def test_output_that_a_page_quotes_has_words_that_the_code_prints(page: Path) -> None:
    blocks = re.findall(r"^```text\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if len(_WORD.findall(line)) >= _WORDS_OF_A_MESSAGE]

    assert [line for line in lines if not any(words in line for words in _phrases())] == []


def test_decisions_are_numbered_and_dated() -> None:
    files = sorted((DOCS / "decisions").glob("[0-9]*.md"))

    assert len({file.name[:4] for file in files}) == len(files)
    for file in files:
        title, _, date, *_ = file.read_text(encoding="utf-8").splitlines()
        assert title.startswith(f"# {file.name[:4]} ")
        assert re.fullmatch(r"\*\d{4}-\d{2}-\d{2}\*", date), file


def test_the_architecture_has_the_imports_that_the_contracts_allow() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.split("| Module | May import |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:3]] for row in table.splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    ours = tuple(f"{package}." for package in ("services", "shared", "emulators", "deploy"))

    assert {module: set(may) for modules, may in rows for module in modules} == {
        module.replace("{service}", "X"): {
            name.replace("{service}", "X")
            for name in one["may_import"]
            if f"{name}.".startswith(ours) and name != module
        }
        for one in contracts
        if one["type"] == "may_import"
        for module in one["modules"]
    }


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= _README_LINES


def test_the_glossary_is_short() -> None:
    terms = _sections("glossary.md")[0]

    assert 0 < len(re.findall(r"^\| [a-z]", terms, re.MULTILINE)) <= _TERMS


def test_each_word_of_others_in_the_glossary_leads_to_the_page_that_explains_it() -> None:
    (words,) = (text for text in _sections("glossary.md") if text.startswith("Other words of these pages\n"))
    rows = re.findall(r"^\| [a-z].*$", words, re.MULTILINE)

    assert rows
    assert [row for row in rows if not re.search(r"\| \[[^]]+\]\([^)]+\) \|$", row)] == []


def _prose(page: Path) -> str:
    """Return a page without its blocks of code, in which `#` begins a comment."""
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def _sections(file: str) -> list[str]:
    """Return the parts of a page of `docs` that its headings of the second level part, without their marks."""
    return re.split(r"^## ", (DOCS / file).read_text(encoding="utf-8"), flags=re.MULTILINE)


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return what a link may name of a page."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings)


@cache
def _commands(service: str) -> frozenset[str]:
    """Return a service's commands, as the page that is made from its help has them."""
    page = (DOCS / "reference/commands.md").read_text(encoding="utf-8")
    return frozenset(re.findall(rf"^### {service} ([\w-]+)$", page, re.MULTILINE))


@cache
def _phrases() -> frozenset[str]:
    """Return the fixed words of the code's texts that are two words at least."""
    return frozenset(words for words in map(str.strip, fixed_texts()) if re.search(r"[a-z]{2,} [a-z]{2,}", words))


@cache
def _names() -> frozenset[str]:
    """Return all names in the code's texts, such as those of log events, and of its settings and folders."""
    code = (path.read_text(encoding="utf-8") for part in _CODE_FOLDERS for path in (ROOT / part).rglob("*.py"))
    return frozenset(name for text in code for name in re.findall(r"[a-z]+(?:_[a-z]+)+", text))
