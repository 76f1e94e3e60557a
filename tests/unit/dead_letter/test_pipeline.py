"""A store is of one pipeline: what another one's replay is told, and how it becomes another's on purpose."""

from typing import Any

import pytest

from services.dead_letter.commands.app import WRONG
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.pipeline import Pipeline, joined
from services.dead_letter.settings import CommandSettings
from services.dead_letter.wiring.connections import pipeline_named
from shared.contracts.errors import MisconfiguredError
from tests.builders import a_change
from tests.unit.dead_letter.dead_letters import a_dead_letter
from tests.worlds.replaying import Shell

OURS = Pipeline(subscription="projects/p/subscriptions/ours", topic="projects/p/topics/ours")
STAGING = "projects/p/topics/staging"


def test_the_first_replay_reports_which_topic_it_is(shell: Shell) -> None:
    shell.world.keep(a_dead_letter())
    assert shell.run("replay", "--all", "--execute") == 0
    assert shell.world.store.pipeline() == Pipeline(topic=shell.world.publisher.topic)


def test_a_replay_that_only_shows_reports_nothing_of_the_topic(shell: Shell) -> None:
    shell.world.keep(a_dead_letter())
    assert shell.run("replay", "--all") == 0
    assert shell.world.store.pipeline() == Pipeline()


def test_a_replay_to_another_topic_sends_nothing_and_reports_both_and_the_fix(shell: Shell) -> None:
    shell.world.keep(a_dead_letter())
    shell.world.store.join(OURS)
    shell.world.publisher.topic = STAGING

    assert shell.run("replay", "--all", "--execute") == WRONG
    assert "replayed to projects/p/topics/ours, and TOPIC is projects/p/topics/staging" in shell.err
    assert "a DATABASE of its own" in shell.err
    assert f"python -m services.dead_letter pipeline --topic {STAGING}`" in shell.err
    assert shell.world.publisher.published == []
    assert shell.world.states() == {State.OPEN: 1}

    assert shell.run("pipeline", "--topic", STAGING) == 0
    assert shell.run("replay", "--all", "--execute") == 0
    assert len(shell.world.publisher.published) == 1


def test_a_topic_that_is_changed_between_two_chunks_of_a_replay_gets_nothing_more(shell: Shell) -> None:
    shell.world.keep(*(a_dead_letter(a_change(n)) for n in range(1_200)))
    claim, new, refused = shell.world.store.claim, Pipeline(topic=STAGING), []

    def change() -> None:
        try:
            shell.world.store.change_pipeline(new, shell.world.clock.now())
        except MisconfiguredError as error:
            refused.append(error.code)

    def claim_after_a_change(*arguments: Any) -> Any:
        change()
        return claim(*arguments)

    shell.world.publisher.then = lambda _some: change()  # while its claims last
    assert shell.run("replay", "--all", "--execute", "--limit", "1") == 0
    assert refused == ["replay-under-way"]

    shell.world.store.claim = claim_after_a_change  # type: ignore[assignment,method-assign]
    assert shell.run("replay", "--all", "--execute") == WRONG
    assert f"replayed to {STAGING}" in shell.err
    assert len(shell.world.publisher.published) == 1
    assert shell.world.states() == {State.OPEN: 1_199, State.REPLAYED: 1}


def test_what_is_known_is_shown_and_changed_one_by_one(shell: Shell) -> None:
    assert shell.asked("pipeline") == {"subscription": None, "topic": None}
    shell.world.store.join(OURS)
    assert shell.asked("pipeline") == {"subscription": OURS.subscription, "topic": OURS.topic}

    assert shell.asked("pipeline", "--subscription", "another") == {"subscription": "another", "topic": OURS.topic}
    assert shell.run("pipeline") == 0
    assert shell.out == "collected from another\nreplayed to projects/p/topics/ours\n"


def test_names_are_of_the_projects_settings_and_an_emulators_are_others() -> None:
    real = CommandSettings(project="p")
    assert pipeline_named(real, "ours", "projects/q/topics/t") == Pipeline(
        subscription="projects/p/subscriptions/ours", topic="projects/q/topics/t"
    )
    emulated = pipeline_named(CommandSettings(project="p", pubsub_emulator_host="127.0.0.1:1"), "ours", "ours")
    with pytest.raises(MisconfiguredError, match="topics/ours, and TOPIC is projects/p/topics/ours of an emulator"):
        joined(OURS, emulated)
    with pytest.raises(MisconfiguredError, match="set GOOGLE_CLOUD_PROJECT"):
        pipeline_named(CommandSettings(), "ours", None)


def test_everything_that_differs_is_reported_at_once() -> None:
    other = Pipeline(subscription="projects/p/subscriptions/theirs", topic=STAGING)
    with pytest.raises(MisconfiguredError) as error:
        joined(OURS, other)
    for name in (OURS.subscription, OURS.topic, other.subscription, other.topic):
        assert name is not None
        assert name in str(error.value)


@pytest.mark.parametrize(
    "names",
    [
        {"topic": ""},
        {"topic": "a b"},
        {"topic": "projects/p/subscriptions/ours"},
        {"subscription": "goog-ours"},
        {"subscription": "projects/p/topics/ours"},
    ],
)
def test_what_can_be_no_topic_or_no_subscription_is_refused_with_its_option(names: dict[str, str]) -> None:
    (option,) = names
    with pytest.raises(MisconfiguredError, match=f"--{option} .*the id of a {option}"):
        pipeline_named(CommandSettings(project="p"), names.get("subscription"), names.get("topic"))
