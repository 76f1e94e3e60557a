"""The text of an error that a person has to act on ends with its code, once, wherever the error comes from."""

import pickle

import pytest

from shared.contracts.errors import MessagesLostError, MisconfiguredError, code_of


def test_the_text_of_an_error_ends_with_its_code() -> None:
    error = MessagesLostError("topic-gone", "the topic is gone:\n  make it")

    assert str(error) == "the topic is gone:\n  make it [topic-gone]"
    assert code_of(str(error)) == error.code


def test_an_error_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(MessagesLostError("topic-gone", "the topic is gone")))

    assert (type(error), error.code, error.message) == (MessagesLostError, "topic-gone", "the topic is gone")


@pytest.mark.parametrize(
    "text", ["set IAP_KEYS", "lists [a, b]", "write it as [7]", "[in-front] of the rest", "a [word]"]
)
def test_a_text_without_a_code_has_none(text: str) -> None:
    error = MisconfiguredError.from_text(text, "not-ours")

    assert code_of(text) is None
    assert (error.message, error.code) == (text, "not-ours")


def test_the_text_of_another_process_keeps_its_code() -> None:
    error = MisconfiguredError.from_text("the source: no such table [table-unknown]", "not-ours")

    assert (error.message, error.code) == ("the source: no such table", "table-unknown")
