import io
import json
from datetime import timedelta

import pytest

from shared.contracts.errors import MisconfiguredError
from shared.reading.answers import answer_pause, answer_resume, answer_topic


def test_a_pause_reports_what_is_new_and_for_how_long_the_stream_keeps_what_is_not_read() -> None:
    out = io.StringIO()
    assert answer_pause({None: True, "Orders": False}, out, as_json=False, retention=timedelta(days=1)) == 0
    assert out.getvalue().splitlines() == [
        "the stream is paused now: nothing is read until `resume` (the stream keeps it for 1 day, 0:00:00)",
        "Orders was paused already: its changes are dropped until `resume Orders`, and it is pending resync",
    ]


def test_where_the_retention_is_not_known_a_pause_names_the_command_that_shows_it() -> None:
    out = io.StringIO()
    answer_pause({None: True}, out, as_json=False)
    assert out.getvalue().endswith("`resume`; `status` says for how long that is kept\n")


def test_as_json_a_pause_names_the_stream_by_null_and_each_table_by_its_name() -> None:
    out = io.StringIO()
    answer_pause({None: True, "Orders": False}, out, as_json=True)
    assert json.loads(out.getvalue()) == {
        "paused": [{"table": None, "changed": True}, {"table": "Orders", "changed": False}]
    }


@pytest.mark.parametrize(("was_paused", "code"), [(True, 0), (False, 1)])
def test_as_json_a_resumption_reports_what_is_still_paused_and_ends_with_1_where_nothing_was(
    was_paused: bool, code: int
) -> None:
    out = io.StringIO()
    assert answer_resume({None: was_paused}, ["Orders"], out, as_json=True) == code
    shown = {"resumed": [{"table": None, "changed": was_paused}], "still_paused": ["Orders"]}
    assert json.loads(out.getvalue()) == shown


def test_a_new_topic_is_named_beside_the_former_one() -> None:
    out = io.StringIO()
    assert answer_topic("changes", "changes-2", out, as_json=True) == 0
    assert json.loads(out.getvalue()) == {"topic": "changes-2", "before": "changes"}
    assert answer_topic("changes", "changes-2", out, as_json=False) == 0
    assert out.getvalue().endswith("the readers publish to changes-2 from now on, and no longer to changes\n")


def test_where_no_topic_was_stored_there_is_none_to_change() -> None:
    with pytest.raises(MisconfiguredError, match="no topic is stored yet: start the reader"):
        answer_topic(None, "changes-2", io.StringIO(), as_json=True)


def test_a_topic_that_is_the_one_already_is_not_said_to_be_left() -> None:
    out = io.StringIO()
    assert answer_topic("changes-2", "changes-2", out, as_json=False) == 0
    assert out.getvalue() == "the readers publish to changes-2 from now on\n"
