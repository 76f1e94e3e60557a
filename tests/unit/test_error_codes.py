"""Every error that a person has to act on has a code of its own, and a page on which it is found."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.documents.errors import CODE, EXPLAINED, FILE, RaisedError, codes_quoted, raised_errors, wordless_codes

DOCS: Final = Path(__file__).parents[2] / "docs"
HEADING: Final = re.compile(r"^### `([^`]+)`$", re.MULTILINE)


def test_every_error_is_raised_with_a_code_that_stands_in_the_source() -> None:
    raised = raised_errors()

    assert len(raised) > 200
    assert [one.place for one in raised if one.code and not CODE.fullmatch(one.code)] == []


def test_a_code_is_of_one_message() -> None:
    by_code: defaultdict[str, list[RaisedError]] = defaultdict(list)
    for raised in raised_errors():
        by_code[raised.code].append(raised)
    del by_code[""]

    several = {
        code: [one.place for one in places]
        for code, places in by_code.items()
        if len({one.file for one in places}) > 1 and len({one.messages for one in places}) > 1
    }
    assert several == {}


def test_an_error_that_adds_to_another_one_quotes_its_message_and_not_its_code() -> None:
    assert list(codes_quoted()) == []


def test_every_code_has_a_heading_on_the_page_of_error_messages() -> None:
    headings = HEADING.findall((DOCS / FILE).read_text(encoding="utf-8"))

    assert {one.code for one in raised_errors()} - {""} <= set(headings)


def test_a_code_whose_message_has_no_words_of_its_own_is_explained_and_no_other() -> None:
    assert wordless_codes() == set(EXPLAINED)
