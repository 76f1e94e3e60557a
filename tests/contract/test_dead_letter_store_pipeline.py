"""What a DeadLetterStore promises of whose dead letters it holds: on the fake, in SQLite and in PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier

import pytest
from sqlalchemy import update

from services.dead_letter.adapters.store.schema import pipeline
from services.dead_letter.app.replay.replay import LEASE
from services.dead_letter.core.dead_letters import Arrival, DeadLetterId, ReplayId
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from tests.contract.dead_letter_stores import postgresql_store
from tests.unit.dead_letter.dead_letters import NOW, a_dead_letter

OURS = Pipeline(subscription="projects/p/subscriptions/ours", topic="projects/p/topics/ours")
REPLAY = ReplayId("r")
THEIRS = Pipeline(subscription="projects/p/subscriptions/theirs", topic="projects/p/topics/theirs")


def test_of_a_new_store_nothing_is_known(store: DeadLetterStore) -> None:
    assert store.pipeline() == Pipeline()


def test_the_first_that_comes_is_remembered(store: DeadLetterStore) -> None:
    assert store.join(OURS) == OURS
    assert store.pipeline() == OURS


def test_several_collectors_of_one_subscription_may_come(store: DeadLetterStore) -> None:
    for _collector in range(3):
        assert store.join(OURS) == OURS


def test_what_the_first_did_not_say_a_later_one_may(store: DeadLetterStore) -> None:
    assert store.join(Pipeline(subscription=OURS.subscription)) == Pipeline(subscription=OURS.subscription)
    assert store.join(Pipeline(topic=OURS.topic)) == OURS
    assert store.join(Pipeline()) == OURS


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            Pipeline(subscription=THEIRS.subscription),
            "subscriptions/ours, and .* is projects/p/subscriptions/theirs",
        ),
        (Pipeline(topic=THEIRS.topic), "topics/ours, and TOPIC is projects/p/topics/theirs"),
        (Pipeline(subscription=OURS.subscription, topic=THEIRS.topic), "topics/ours, and TOPIC is"),
    ],
)
def test_another_is_refused(store: DeadLetterStore, other: Pipeline, message: str) -> None:
    store.join(OURS)
    with pytest.raises(MisconfiguredError, match=message):
        store.join(other)
    assert store.pipeline() == OURS


def test_of_one_that_is_refused_nothing_is_remembered(store: DeadLetterStore) -> None:
    store.join(Pipeline(topic=OURS.topic))
    with pytest.raises(MisconfiguredError):
        store.join(THEIRS)
    assert store.pipeline() == Pipeline(topic=OURS.topic)


def test_of_several_that_come_at_once_one_is_the_first(store: DeadLetterStore) -> None:
    def join(mine: Pipeline) -> Pipeline | None:
        try:
            return store.join(mine)
        except MisconfiguredError:
            return None

    with ThreadPoolExecutor(6) as threads:
        joined = list(threads.map(join, [OURS, THEIRS] * 3))
    known = store.pipeline()
    assert known in (OURS, THEIRS)
    assert joined == [one if one == known else None for one in [OURS, THEIRS] * 3]


def test_it_is_changed_on_purpose_part_by_part(store: DeadLetterStore) -> None:
    store.join(OURS)
    half = Pipeline(subscription=OURS.subscription, topic=THEIRS.topic)
    assert store.change_pipeline(Pipeline(topic=THEIRS.topic), NOW) == half
    assert store.join(half) == half
    assert store.change_pipeline(Pipeline(subscription=THEIRS.subscription), NOW) == THEIRS
    assert store.pipeline() == THEIRS


def test_no_other_topic_while_a_replay_has_claims(store: DeadLetterStore) -> None:
    one = a_dead_letter()
    store.join(OURS)
    store.keep([Arrival(dead_letter=one, message_id="1")], NOW)
    with store.living(REPLAY):
        store.claim([DeadLetterId(one.identity)], REPLAY, NOW, LEASE)
        with pytest.raises(MisconfiguredError, match=r"under way \(1 dead letters .* nothing was changed"):
            store.change_pipeline(THEIRS, NOW)
        assert store.pipeline() == OURS
        assert store.change_pipeline(Pipeline(topic=OURS.topic), NOW) == OURS
        assert store.change_pipeline(Pipeline(subscription=THEIRS.subscription), NOW).topic == OURS.topic
        over = Nanoseconds(NOW + nanoseconds(LEASE))
        assert store.change_pipeline(THEIRS, over) == THEIRS, "its claims have run out"


def test_a_claim_under_way_and_a_change_of_the_topic_come_one_after_the_other(store: DeadLetterStore) -> None:
    one = a_dead_letter()
    store.join(OURS)
    store.keep([Arrival(dead_letter=one, message_id="1")], NOW)
    both_ready = Barrier(2)

    def replay() -> bool:
        both_ready.wait()
        store.claim([DeadLetterId(one.identity)], REPLAY, NOW, LEASE)
        try:
            store.join(Pipeline(topic=OURS.topic))
        except MisconfiguredError:
            store.release(REPLAY)
            return False
        return True

    def change() -> bool:
        both_ready.wait()
        try:
            return store.change_pipeline(Pipeline(topic=THEIRS.topic), NOW).topic == THEIRS.topic
        except MisconfiguredError:
            return False

    for _attempt in range(20):
        with store.living(REPLAY), ThreadPoolExecutor(2) as threads:
            published, changed = threads.submit(replay), threads.submit(change)
            assert not (published.result() and changed.result())
        store.release(REPLAY)
        store.change_pipeline(Pipeline(topic=OURS.topic), NOW)


def test_in_postgresql_a_claim_waits_for_a_change_of_the_topic_that_is_under_way(postgresql: str) -> None:
    one = a_dead_letter()
    with postgresql_store(postgresql) as store, ThreadPoolExecutor(1) as threads:
        store.join(OURS)
        store.keep([Arrival(dead_letter=one, message_id="1")], NOW)
        with store._database.writing() as changing:
            changing.execute(update(pipeline).where(pipeline.c.part == "topic").values(name=THEIRS.topic))
            claimed = threads.submit(store.claim, [DeadLetterId(one.identity)], REPLAY, NOW, LEASE)
            assert wait([claimed], timeout=1).not_done
        assert claimed.result() == [DeadLetterId(one.identity)]
        with pytest.raises(MisconfiguredError):
            store.join(Pipeline(topic=OURS.topic))
