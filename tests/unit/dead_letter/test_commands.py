"""The command line: what it prints, what it does, and how it ends."""

import base64
import json
import os
from pathlib import Path

import pytest

from services.dead_letter.core.dead_letters import Action, DeadLetterId, State
from services.dead_letter.core.selection import Selection
from shared.contracts.change_batch import decode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from tests.builders import a_change
from tests.unit.dead_letter.dead_letters import JUNK, ONE, TWO, a_dead_letter, at, junk
from tests.worlds.replaying import Shell


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [ONE, TWO, JUNK]),
        (["--id", ONE.identity[:8], "--id", JUNK.identity], [ONE, JUNK]),
        (["--table", "pilots"], [TWO]),
        (["--reason", "undecodable", "--reason", "schema_conflict"], [TWO, JUNK]),
        (["--key", "[1]"], [ONE]),
        (["--since", "90m"], [ONE, TWO]),
        (["--until", at(ONE.failed_at)], [TWO, JUNK]),
        (["--since", "90m", "--until", "30m"], [TWO]),
        (["--sequence-from", "14"], [TWO]),
        (["--sequence-until", "14"], [ONE]),
        (["--state", "any"], [ONE, TWO, JUNK]),
        (["--state", "replayed"], []),
        (["--table", "nothing"], []),
    ],
)
def test_filters(shell: Shell, options: list[str], expected: list[DeadLetter]) -> None:
    shell.world.keep(ONE, TWO, JUNK)
    assert shell.ids(*options) == {one.identity for one in expected}


def test_groups_show_what_to_do_about_each_of_their_reasons(shell: Shell) -> None:
    shell.world.keep(a_dead_letter(), junk())
    assert shell.run("groups") == 0
    below = shell.out.partition("\n\n")[2].splitlines()
    assert sorted(below) == [
        f"{reason}: {do} docs/reference/dead-letters.md#{reason} explains it."
        for reason, do in (
            ("undecodable", "Find the program that published it by the attributes, stop it, and discard this."),
            ("value_does_not_fit", "Correct the row at its source, or edit the dead letter; then replay."),
        )
    ]


def test_a_filter_by_group_is_what_groups_show(shell: Shell) -> None:
    shell.world.keep(ONE, a_dead_letter(a_change(3)), TWO)
    first = shell.asked("groups")["groups"][0]
    assert (first["dead_letters"], first["table"]) == (2, "planes")
    assert shell.ids("--group", first["id"]) == {ONE.identity, a_dead_letter(a_change(3)).identity}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["list", "--since", "yesterday"], "an age"),
        (["list", "--sequence-from", "xyz"], "change sequence"),
        (["list", "--reason", "bad"], "'bad' is not one of 'undecodable'"),
        (["list", "--after", "nonsense"], "--after"),
        (["list", "--limit", "9" * 20], "less than or equal to 1000000"),
        (["replay", "--execute"], "--all"),
        (["replay", "--all", "--execute", "--rate", "1e-300"], "'--rate': neither 0 nor between 0.001 and 100000"),
        (["replay", "--all", "--execute", "--rate", "inf"], "'--rate': neither 0 nor between 0.001 and 100000"),
        (["replay", "--all", "--execute", "--rate", "nan"], "'--rate': neither 0 nor between 0.001 and 100000"),
        (["discard", "--why", "w"], "--all"),
        (["discard", "--state", "open", "--why", "w"], "--all"),
        (["discard", "--all"], "--why"),
        (["discard", "--all", "--why", " "], "--why: say why"),
        (["edit", ONE.identity, "--why", "w", "--set", "seats"], "COLUMN=JSON"),
        (["edit", ONE.identity, "--why", "w", "--set", "seats=1", "--set", "seats=2"], "names a column twice"),
        (["edit", ONE.identity, "--why", " ", "--set", "seats=1"], "what was wrong"),
        (["fly"], "fly"),
        (["relpay"], "unknown command relpay: did you mean replay?"),
        (["list", "--state", "shut"], "'shut' is not one of 'open', 'replayed'"),
        (["list", "--reasn", "undecodable"], "no option --reasn: did you mean --reason?"),
        (["list", "--filter", "x"], "--id, --group, --table, --reason, --key, --state, "),
        (["export", "--out", "/nowhere/at/all"], "cannot be written"),
    ],
)
def test_wrong_usage_ends_with_2_and_reports_what_is_right(shell: Shell, options: list[str], message: str) -> None:
    shell.world.keep(ONE)
    assert shell.run(*options) == 2
    assert message in shell.err
    assert "Value error" not in shell.err, "plain words"
    assert shell.world.states() == {State.OPEN: 1}
    assert shell.world.publisher.published == []


@pytest.mark.parametrize(
    "command",
    [["list"], ["groups"], ["export"], ["discard", "--all", "--why", "w"], ["restore", "--all"], ["replay"],
     ["replay", "--all", "--execute"], ["show", "deadbeef"], ["list", "--id", "deadbeef"],
     ["edit", "deadbeef", "--why", "w"]],
)  # fmt: skip
def test_where_no_dead_letter_is_meant_the_exit_code_is_3(shell: Shell, command: list[str]) -> None:
    assert shell.run(*command) == 3
    assert ("state `any`" in shell.err) == ("deadbeef" in command)
    none = "no dead letters match. That is not a failure: exit code 3 tells it to a script\n"
    assert (shell.err == none) == ("deadbeef" not in command)


@pytest.mark.parametrize(
    "command", [["list"], ["groups"], ["export"], ["discard", "--why", "x"], ["restore"], ["replay"]]
)
def test_a_key_that_no_dead_letter_has_is_answered_with_how_keys_are_written(shell: Shell, command: list[str]) -> None:
    shell.world.keep(ONE)
    assert shell.run(*command, "--key", "1") == 3
    assert shell.err.startswith("no dead letters match")
    assert shell.err.endswith("""; keys are written as lists show them, exactly: --key '["a",1]'\n""")
    assert shell.run(*command, "--table", "nowhere") == 3
    assert "keys are written" not in shell.err


def test_an_empty_store_has_numbers(shell: Shell) -> None:
    assert shell.run("stats") == 0
    assert shell.err == ""


@pytest.mark.parametrize(
    ("error", "code"), [(TransientError("away"), 1), (MisconfiguredError("made-up", "set DATABASE"), 2)]
)
def test_a_store_that_is_unavailable_or_wrong_is_reported(shell: Shell, error: Exception, code: int) -> None:
    shell.store_error = error
    assert shell.run("list") == code
    assert str(error) in shell.err


def test_pages_of_a_list_hold_every_dead_letter_once(shell: Shell) -> None:
    shell.world.keep(*(a_dead_letter(a_change(n)) for n in range(7)))
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = shell.asked("list", "--limit", "3", *after)
        assert page["matched"] == 7
        seen += [one["id"] for one in page["dead_letters"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]
    assert len(seen) == len(set(seen)) == 7


def test_a_dead_letter_is_shown_masked_without_an_entry_in_its_trail(shell: Shell) -> None:
    shell.world.keep(ONE)
    document = shell.asked("show", ONE.identity[:8])
    assert document["masked"]
    assert document["payload"]["changes"][0]["row"] == {"name": "<string of 3>", "seats": "<number of 1 digits>"}
    assert [entry["action"] for entry in document["trail"]] == ["arrived"]
    assert shell.run("show", ONE.identity) == 0
    assert "Ada" not in shell.out
    assert shell.out.endswith("docs/reference/dead-letters.md#value_does_not_fit explains it.\n")
    assert shell.actions(ONE) == [Action.ARRIVED]


@pytest.mark.parametrize("json_wanted", [True, False])
def test_values_are_shown_on_asking_and_that_is_in_the_trail(shell: Shell, json_wanted: bool) -> None:
    shell.world.keep(ONE)
    assert shell.run("show", ONE.identity, "--values", *(["--json"] if json_wanted else [])) == 0
    assert "Ada" in shell.out
    last = shell.world.store.trail(DeadLetterId(ONE.identity))[-1]
    assert (last.action, last.who) == (Action.VALUES_SHOWN, "ada")


def test_what_steers_a_terminal_is_not_printed(shell: Shell) -> None:
    shell.world.keep(junk(detail="\x1b[2J[red]gone", reason=Reason.UNDECODABLE))
    assert shell.run("list") == 0
    assert "\x1b" not in shell.out
    assert "[red]gone" in shell.out


def test_stats_count_what_there_is(shell: Shell) -> None:
    assert shell.asked("stats")["by_state"].get("open", 0) == 0
    shell.world.keep(ONE, TWO)
    document = shell.asked("stats")
    assert document["by_state"]["open"] == 2
    assert document["open_by_table"] == {"planes": 1, "pilots": 1}
    assert document["oldest_open"] == at(TWO.failed_at)
    assert shell.run("stats") == 0
    assert "pilots" in shell.out


def test_an_export_is_one_line_a_dead_letter_masked_unless_values_are_asked_for(shell: Shell, tmp_path: Path) -> None:
    shell.world.keep(ONE, JUNK)
    file = tmp_path / "letters.jsonl"
    assert shell.run("export", "--out", str(file)) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["id"] for line in lines} == {ONE.identity, JUNK.identity}
    assert all(line["masked"] and "data" not in line for line in lines)
    assert "Ada" not in file.read_text()
    assert shell.actions(ONE) == [Action.ARRIVED]

    assert shell.run("export", "--id", ONE.identity, "--values", "--out", str(file)) == 0
    (line,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert base64.b64decode(line["data"]) == ONE.data
    assert (line["attributes"], line["ordering_key"]) == (ONE.attributes, ONE.ordering_key)
    assert shell.actions(ONE) == [Action.ARRIVED, Action.EXPORTED]


def test_what_is_discarded_can_be_restored(shell: Shell) -> None:
    shell.world.keep(ONE, TWO, JUNK)
    document = shell.asked("discard", "--table", "planes", "--why", "test data")
    assert document == {"state": "discarded", "changed": 1, "matched": 1}
    assert shell.ids() == {TWO.identity, JUNK.identity}
    last = shell.world.store.trail(DeadLetterId(ONE.identity))[-1]
    assert (last.action, last.who, last.result) == (Action.DISCARDED, "ada", "test data")

    assert shell.asked("restore", "--all") == {"state": "open", "changed": 1, "matched": 1}
    assert shell.ids() == {ONE.identity, TWO.identity, JUNK.identity}


def test_many_dead_letters_are_discarded_in_one_go(shell: Shell) -> None:
    shell.world.keep(*(a_dead_letter(a_change(n)) for n in range(1_203)))
    assert shell.asked("discard", "--all", "--why", "w")["changed"] == 1_203
    assert shell.world.states() == {State.DISCARDED: 1_203}


def test_what_is_not_open_is_not_discarded_and_that_is_reported(shell: Shell) -> None:
    shell.world.keep(ONE, TWO)
    shell.world.replay(selection=Selection(ids=frozenset({DeadLetterId(ONE.identity)})))
    assert shell.run("discard", "--id", ONE.identity, "--id", TWO.identity, "--why", "w") == 1
    assert "1 dead letters were not changed" in shell.err
    assert shell.world.states() == {State.REPLAYED: 1, State.DISCARDED: 1}


def test_a_replayed_dead_letter_is_opened_by_its_id_only(shell: Shell) -> None:
    shell.world.keep(ONE)
    shell.world.replay()
    assert shell.run("restore", "--all") == 3
    assert shell.asked("restore", "--id", ONE.identity, "--why", "the topic was lost")["changed"] == 1
    assert shell.world.states() == {State.OPEN: 1}


@pytest.mark.parametrize("way", ["set", "file", "editor"])
def test_an_edit_takes_the_dead_letters_place(shell: Shell, tmp_path: Path, way: str) -> None:
    shell.world.keep(ONE)
    file = tmp_path / "row.json"
    file.write_text('{"name": "Grace", "seats": 3}')
    shell.editor = "sed -i s/Ada/Grace/"
    options = {"set": ["--set", 'name="Grace"'], "file": ["--file", str(file)], "editor": []}[way]
    document = shell.asked("edit", ONE.identity[:8], "--why", "misspelt", *options)

    assert '-  "name": "Ada"' in document["diff"]
    assert document["sequence"] == str(four_sections(10, 0, 0, 1))
    assert shell.ids() == {document["id"]}
    copy = shell.world.stored(document["id"]).dead_letter
    assert json.loads(bytes(decode_batch(copy.data).rows[0])) == {"name": "Grace", "seats": 3}
    assert shell.world.states() == {State.OPEN: 1, State.SUPERSEDED: 1}
    assert shell.actions(ONE)[-1] is Action.EDITED

    shown = shell.asked("show", ONE.identity)
    assert "Ada" not in json.dumps(shown)
    assert shown["edited_as"] == document["id"]
    assert "Ada" in json.dumps(shell.asked("show", ONE.identity, "--values"))
    assert shell.run("edit", ONE.identity, "--why", "again", "--set", "name=null") == 1
    assert document["id"] in shell.err


@pytest.mark.parametrize(("options", "message"), [(["--set", "id=2"], "primary key"), ([], "set EDITOR")])
def test_an_edit_that_cannot_be_made_reports_why(shell: Shell, options: list[str], message: str) -> None:
    shell.world.keep(ONE)
    assert shell.run("edit", ONE.identity, "--why", "w", *options) == 1
    assert message in shell.err
    assert shell.world.states() == {State.OPEN: 1}


def test_an_editor_that_fails_changes_nothing(shell: Shell) -> None:
    shell.world.keep(ONE)
    shell.editor = "false"
    assert shell.run("edit", ONE.identity, "--why", "w") == 1
    assert "failed" in shell.err
    shell.editor = "vi 'x"
    assert shell.run("edit", ONE.identity, "--why", "w") == 1
    assert "the editor vi 'x (VISUAL or EDITOR) failed: No closing quotation" in shell.err
    shell.editor = "no-such-editor-" + str(os.getpid())
    assert shell.run("edit", ONE.identity, "--why", "w") == 1
    assert shell.world.states() == {State.OPEN: 1}


def test_a_replay_shows_what_it_would_do_until_it_is_to_be_executed(shell: Shell) -> None:
    old = a_dead_letter(a_change(5, sequence=1))
    shell.world.apply(old, 2)
    shell.world.keep(ONE, TWO, old)
    lost = a_dead_letter(a_change(9), data=b"{}", payload_bytes=11_000_000)
    shell.world.keep(lost)

    document = shell.asked("replay")
    assert (document["executed"], document["sent"], document["mirrors_asked"]) == (False, 0, True)
    assert {name: count for name, count in document["verdicts"].items() if count} == {
        "send": 2,
        "superseded": 1,
        "no_payload": 1,
    }
    verdicts = {one["id"]: one["verdict"] for one in document["dead_letters"]}
    assert verdicts[old.identity] == "superseded"
    assert shell.run("replay") == 0
    assert "would be sent" in shell.out
    assert "--execute" in shell.out
    assert shell.world.states() == {State.OPEN: 4}
    assert shell.world.publisher.published == []

    assert shell.run("replay", "--all", "--execute", "--json") == 1
    document = json.loads(shell.out)
    assert (document["sent"], document["left_open"]) == (2, 1)
    assert "1 of these dead letters stay open" in shell.err
    assert shell.world.states() == {State.REPLAYED: 2, State.SUPERSEDED: 1, State.OPEN: 1}
    assert shell.run("replay", "--id", lost.identity) == 0
    assert "write the row once more at its source" in shell.out


def test_a_replay_that_does_it_all_ends_with_0_and_a_second_one_finds_nothing(shell: Shell) -> None:
    shell.world.keep(ONE, JUNK)
    shell.mirrors = None
    assert shell.run("replay", "--all", "--execute") == 0
    assert "2 sent" in shell.out
    assert "BIGQUERY_DATASET is not set" in shell.out
    assert shell.run("replay", "--all", "--execute") == 3


def test_a_replay_that_is_stopped_reports_so_and_the_next_goes_on(shell: Shell) -> None:
    shell.world.keep(*(a_dead_letter(a_change(n)) for n in range(20)))
    shell.world.publisher.then = lambda _dead_letters: shell.world.clock.request()
    assert shell.run("replay", "--all", "--execute", "--rate", "20", "--json") == 1
    assert "run it again" in shell.err
    document = json.loads(shell.out)
    assert (document["stopped"], document["sent"]) == (True, 5)


@pytest.mark.parametrize("options", [["--limit", "1"], ["--rate", "0"], ["--force"]])
def test_options_of_a_replay(shell: Shell, options: list[str]) -> None:
    shell.world.keep(ONE, JUNK)
    assert shell.asked("replay", "--all", "--execute", *options)["sent"] == (1 if "--limit" in options else 2)
    needs_it = {ONE.identity: False, JUNK.identity: options == ["--force"]}
    forced = {one.identity: needs_it[one.identity] for one in shell.world.publisher.published}
    assert list(forced.values()) == shell.world.publisher.forced
