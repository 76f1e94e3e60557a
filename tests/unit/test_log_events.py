"""Every event of the logs has a sentence for people, and every sentence an event."""

import re

from shared.runtime.log_events import SENTENCES
from tests.documents.log_events import logged_events

MOST_WORDS = 25


def test_every_event_that_is_logged_has_a_sentence_and_every_sentence_an_event() -> None:
    events = logged_events()

    assert len(events) > len(SENTENCES)
    assert [(name, place) for name, _level, _fields, place in events if name not in SENTENCES] == []
    assert SENTENCES.keys() - {name for name, *_rest in events} == set()


def test_no_event_has_a_field_in_which_its_line_has_something_else() -> None:
    ours = {"event", "message", "severity", "service", "time", "error_code"}

    assert [(name, place) for name, _level, fields, place in logged_events() if fields & ours] == []


def test_names_are_words_and_sentences_are_short_and_say_more_than_the_name() -> None:
    for name, sentence in SENTENCES.items():
        assert re.fullmatch("[a-z]+(_[a-z]+)*", name), name
        assert re.fullmatch(r"[A-Z].*[a-zA-Z_]", sentence), name
        assert 1 < len(sentence.split()) <= MOST_WORDS, name
        assert sentence.lower() != name.replace("_", " "), name


def test_no_two_events_have_one_sentence() -> None:
    assert len(set(SENTENCES.values())) == len(SENTENCES)
