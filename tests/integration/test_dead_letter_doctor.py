"""The dead-letter service's doctor: all is well, or what is not is named with its fix."""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.wiring.doctor import doctor
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from tests.integration.stand_in import PROJECT, StandIn
from tests.worlds.doctor_checks import unexplained

pytestmark = pytest.mark.integration


@dataclass
class Place:
    """What a service would be told."""

    environ: dict[str, str]

    def examined(self, **settings: str) -> tuple[int, Sequence[Mapping[str, str]]]:
        """Return the exit code and the findings."""
        out = io.StringIO()
        code = doctor(self.environ | settings, out, as_json=True)
        return code, json.loads(out.getvalue())

    def wrong(self, **settings: str) -> Mapping[str, str]:
        """Return what is not right, by its check: what was found, and the fix."""
        code, found = self.examined(**settings)
        assert code == any(one["level"] == "error" for one in found)
        return {one["check"]: f"{one['detail']} -> {one['fix']}" for one in found if one["level"] != "ok"}


@pytest.fixture
def place(pubsub_emulator: str, bigquery_stand_in: tuple[str, str], topology: PubsubTopology, tmp_path: Path) -> Place:
    database = f"sqlite:///{tmp_path / 'letters.sqlite3'}"
    open_database(database).close()
    return Place(
        {
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": pubsub_emulator,
            "DEAD_LETTER_SUBSCRIPTION": short_name(topology.dead_letter_subscription),
            "TOPIC": short_name(topology.topic),
            "DATABASE": database,
            "BIGQUERY_DATASET": StandIn(bigquery_stand_in).dataset,
            "BIGQUERY_EMULATOR_HOST": bigquery_stand_in[0],
        }
    )


def test_a_healthy_setup_has_only_the_findings_that_an_emulator_cannot_answer(place: Place) -> None:
    of_this_machine = "store: disk"  # where its temporary files are in memory, or it is a container itself
    found = [check for check in place.wrong() if check != of_this_machine]
    assert [check for check in found if not check.startswith("rights on ")] == []
    assert unexplained(one["check"] for one in place.examined()[1]) == []


@pytest.mark.parametrize(
    ("setting", "value", "check", "message"),
    [
        ("DEAD_LETTER_SUBSCRIPTION", "nobody-made-it", "subscription nobody-made-it", "cdc_consumer setup"),
        ("TOPIC", "nobody-made-it", "topic nobody-made-it", "nobody-made-it"),
        ("TOPIC", "", "topic", "set TOPIC"),
        ("BIGQUERY_DATASET", "nowhere", "dataset nowhere", "nowhere"),
        ("DATABASE", "sqlite:////nowhere/letters.sqlite3", "store", "start the service"),
        ("DATABASE", "postgresql://me:secret@127.0.0.1:1/letters", "store", "can be reached"),
        ("GOOGLE_CLOUD_PROJECT", "", "settings", "GOOGLE_CLOUD_PROJECT"),
    ],
)
def test_each_error_is_named_with_its_fix(place: Place, setting: str, value: str, check: str, message: str) -> None:
    found = place.wrong(**{setting: value})
    assert message in found[check]
    assert "secret" not in str(found)


def test_tokens_and_keys_of_the_api_that_cannot_be_read_are_named(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for setting, message in (("API_TOKEN_FILE", "holds no token"), ("IAP_KEYS_FILE", "cannot be read")):
        settings = {"API_PORT": "0", "IAP_AUDIENCE": "/projects/1/apps/x", setting: str(file)}
        assert message in place.wrong(**settings)["HTTP API"]
    file.write_text("0123456789abcdef")
    code_and_found = place.examined(API_PORT="0", API_TOKEN_FILE=str(file))
    assert [one["level"] for one in code_and_found[1] if one["check"] == "HTTP API"] == ["ok"]
    assert unexplained(one["check"] for one in code_and_found[1]) == []


def test_a_store_of_another_pipeline_is_reported_with_both_names_and_the_fix(place: Place) -> None:
    with closing(open_database(place.environ["DATABASE"])) as database:
        SqlDeadLetterStore(database).join(Pipeline(topic="projects/p/topics/theirs"))
    found = place.wrong()["store"]
    assert "replayed to projects/p/topics/theirs, and TOPIC is" in found
    assert place.environ["TOPIC"] in found
    assert "a DATABASE of its own" in found


def test_the_consumers_subscription_is_found_to_be_none_of_dead_letters(place: Place) -> None:
    subscription = place.environ["TOPIC"]  # the same name, as it happens
    found = place.wrong(DEAD_LETTER_SUBSCRIPTION=subscription)
    assert "it is of the topic of change batches" in found[f"subscription {subscription}"]
