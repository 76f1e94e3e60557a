"""What a doctor finds is one list, for people as a table with every fix, for programs as JSON."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import pytest

from services.bigtable_reader.wiring import doctor as bigtable_reader
from services.cdc_consumer.wiring import doctor as cdc_consumer
from services.dead_letter.wiring import doctor as dead_letter
from services.spanner_reader.wiring import doctor as spanner_reader
from shared.runtime.findings import Finding, Level, exit_code, print_findings

FINE = Finding(Level.OK, "dataset", "millrace.mirror is there")
EXPIRES = Finding(Level.WARNING, "expiry", "it expires after 31 days", "gcloud pubsub subscriptions update s --never")
GONE = Finding(Level.ERROR, "subscription", "it does not exist", "make it:\npython -m services.cdc_consumer setup")


def printed(*findings: Finding, as_json: bool = False) -> str:
    out = io.StringIO()
    print_findings(findings, as_json, out)
    return out.getvalue()


def test_a_table_has_every_finding_in_line_and_each_fix_below_its_finding() -> None:
    assert printed(FINE, EXPIRES, GONE).splitlines() == [
        "ok       dataset       millrace.mirror is there",
        "warning  expiry        it expires after 31 days",
        "                       -> gcloud pubsub subscriptions update s --never",
        "error    subscription  it does not exist",
        "                       -> make it:",
        "                          python -m services.cdc_consumer setup",
        "1 ok, 1 warning, 1 error",
    ]


def test_long_details_are_wrapped_and_paths_stay_whole() -> None:
    path = "projects/" + "p" * 150
    lines = printed(Finding(Level.OK, "topic", "word " * 40 + path)).splitlines()

    assert any(line.strip() == path for line in lines)
    assert all(len(line) <= 115 or path in line for line in lines)
    assert "".join(lines[:-1]).split().count("word") == 40


def test_json_holds_the_same() -> None:
    assert json.loads(printed(FINE, GONE, as_json=True)) == [
        {"level": "ok", "check": "dataset", "detail": "millrace.mirror is there", "fix": ""},
        {"level": "error", "check": "subscription", "detail": GONE.detail, "fix": GONE.fix},
    ]


def test_nothing_found_is_printed_too() -> None:
    assert printed() == "0 ok, 0 warning, 0 error\n"
    assert json.loads(printed(as_json=True)) == []


def test_only_errors_fail() -> None:
    assert exit_code([FINE, EXPIRES]) == 0
    assert exit_code([FINE, GONE, EXPIRES]) == 1


@pytest.mark.parametrize("level", [Level.WARNING, Level.ERROR])
def test_what_is_wrong_has_a_fix(level: Level) -> None:
    with pytest.raises(ValueError, match="needs its fix"):
        Finding(level, "dataset", "it is not there")


@pytest.mark.parametrize(
    "looked_at",
    [
        pytest.param(each._findings, id=each.__name__)
        for each in (bigtable_reader, cdc_consumer, dead_letter, spanner_reader)
    ],
)
def test_every_doctor_warns_of_a_near_setting(looked_at: Callable[[Mapping[str, str]], Iterator[Finding]]) -> None:
    names = (
        "GOOGLE_CLOUD_PROJECT SPANNER_INSTANCE SPANNER_DATABASE CHANGE_STREAM TOPIC BIGTABLE_INSTANCE BIGTABLE_TABLE"
    )
    more = "SUBSCRIPTION DEAD_LETTER_SUBSCRIPTION BIGQUERY_DATASET"
    given = dict.fromkeys(f"{names} {more}".split(), "name") | {"TABLE_FILE": "tables.toml", "JAVA_HOME": "/nowhere"}
    given |= {"DATABASE": "sqlite:////nowhere/letters.sqlite3", "DEAD_LETTER_TOPIC": "name-of-dead-letters"}

    (found,) = (one for one in islice(looked_at(given), 4) if one.check == "variable TABLE_FILE")
    assert (found.level, found.detail) == (Level.WARNING, "no setting has this name")
    assert "set TABLES_FILE if that is meant" in found.fix
