"""The replay command as a process, between a SQLite file, the Pub/Sub emulator and the BigQuery stand-in."""

import json
import signal
from collections import Counter

import pytest

from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.core.schema.destinations import destinations
from services.dead_letter.core.dead_letters import DeadLetterId, State
from shared.contracts.change_sequence import four_sections
from tests.builders import a_header
from tests.integration.stand_in import PROJECT, StandIn
from tests.worlds.dead_letter_commands import TIMEOUT, Place, fresh

pytestmark = pytest.mark.integration


def test_a_replay_arrives_as_the_dead_letters_came_and_a_second_one_changes_nothing(place: Place) -> None:
    dead_letters = fresh(20)
    place.keep(dead_letters)
    code, out, _err = place.run("replay", "--json")
    assert (code, json.loads(out)["verdicts"]["send"]) == (0, 20)
    assert place.published() == []

    assert place.replay()["sent"] == 20
    messages = place.published()
    by_id = {one.identity: one for one in dead_letters}
    assert sorted(message.attributes["replay_of"] for message in messages) == sorted(by_id)
    for message in messages:
        dead_letter = by_id[message.attributes["replay_of"]]
        assert (message.data, message.ordering_key) == (dead_letter.data, dead_letter.ordering_key)
        assert dict(message.attributes) == {**dead_letter.attributes, "replay_of": dead_letter.identity}

    code, _out, err = place.run("replay", "--all", "--execute")
    assert (code, "no dead letters" in err) == (3, True)
    assert place.published() == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_finishes_what_is_under_way_and_the_next_goes_on_at_once(
    place: Place, sign: signal.Signals
) -> None:
    place.keep(fresh(400))
    process = place.start("replay", "--all", "--execute", "--rate", "100", "--json")
    place.wait_until(1)
    process.send_signal(sign)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1, err
    document = json.loads(out)
    assert document["stopped"]
    assert 0 < document["sent"] == place.replayed() < 400
    assert "run it again" in err

    assert place.replay("--rate", "0")["sent"] == 400 - document["sent"]
    times = Counter(message.attributes["replay_of"] for message in place.published())
    assert (len(times), set(times.values())) == (400, {1})


def test_an_old_change_is_superseded_by_the_newer_row_in_the_mirror(
    place: Place, bigquery_stand_in: tuple[str, str]
) -> None:
    stand_in = StandIn(bigquery_stand_in)
    wanted = destinations(a_header())
    assert wanted is not None
    assert wanted.mirror is not None
    BigQueryTables(stand_in.client, PROJECT, stand_in.dataset).ensure(wanted.mirror)
    stand_in.run(f"INSERT INTO planes (id, _millrace_sequence) VALUES (1, '{four_sections(2)}')")
    place.variables = {"BIGQUERY_DATASET": stand_in.dataset, "BIGQUERY_EMULATOR_HOST": bigquery_stand_in[0]}
    old, new = fresh(1)[0], fresh(9)[8]
    place.keep([old, new])

    document = place.replay()
    assert (document["sent"], document["verdicts"]["superseded"], document["mirrors_asked"]) == (1, 1, True)
    assert [message.attributes["replay_of"] for message in place.published()] == [new.identity]
    assert {one.id: one.state for one in place.dead_letters()} == {
        DeadLetterId(old.identity): State.SUPERSEDED,
        DeadLetterId(new.identity): State.REPLAYED,
    }


def test_a_topic_without_a_subscription_takes_no_replay(place: Place) -> None:
    place.keep(fresh(1))
    place.variables = {"TOPIC": "nobody-listens"}
    code, _out, err = place.run("replay", "--all", "--execute")
    assert code == 2
    assert "nobody-listens" in err
    place.variables = {"TOPIC": ""}
    code, _out, err = place.run("replay", "--all", "--execute")
    assert (code, "set TOPIC" in err) == (2, True)
    assert [one.state for one in place.dead_letters()] == [State.OPEN]


def test_without_a_store_the_error_names_the_setting(place: Place) -> None:
    code, _out, err = place.run("list")
    assert (code, "DATABASE" in err) == (2, True)
    assert not place.file.exists()
