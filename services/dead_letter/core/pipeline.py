"""Whose dead letters a store holds: of one pipeline, known by its subscription and by the topic of its replays.

A replay sends every dead letter of its selection to one topic. The dead letters of another pipeline would go to a
consumer that never had them, and count as replayed without their own having seen them.
"""

from dataclasses import dataclass
from typing import Final

from shared.contracts.errors import MisconfiguredError

_EMULATED: Final = " of an emulator"
_CHANGE: Final = "python -m services.dead_letter pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Full names, as `named` gives them; None where one is not known, or not said."""

    subscription: str | None = None
    topic: str | None = None

    def with_new(self, new: "Pipeline") -> "Pipeline":
        """Return it with what is said again in the place of what was."""
        return Pipeline(subscription=new.subscription or self.subscription, topic=new.topic or self.topic)


def joined(known: Pipeline, mine: Pipeline) -> Pipeline:
    """Return what is known and, where that is nothing, what is mine; MisconfiguredError where mine is another."""
    differences = []
    if _differ(known.subscription, mine.subscription):
        differences.append(
            f"they are collected from {known.subscription}, and DEAD_LETTER_SUBSCRIPTION is {mine.subscription} "
            f"(if that takes its place: `{_CHANGE} --subscription {_plain(mine.subscription)}`)"
        )
    if _differ(known.topic, mine.topic):
        differences.append(
            f"they are replayed to {known.topic}, and TOPIC is {mine.topic} "
            f"(if that takes its place: `{_CHANGE} --topic {_plain(mine.topic)}`)"
        )
    if differences:
        raise MisconfiguredError(
            "dead-letters-of-another-pipeline",
            f"the dead letters in DATABASE are of another pipeline: {'; '.join(differences)}. Replayed together, the "
            "dead letters of one would go to the other's tables: give each pipeline a DATABASE of its own",
        )
    return mine.with_new(known)


def refuse_while_replayed(claimed: int) -> None:
    """Raise MisconfiguredError if replays have claims: they publish to the topic known so far."""
    if claimed:
        raise MisconfiguredError(
            "replay-under-way",
            f"a replay is under way ({claimed} dead letters are claimed), and would go on to the former topic: nothing "
            "was changed. Wait until it has ended (ten minutes, if it was killed), or stop it, and then do this again",
        )


def _differ(known: str | None, mine: str | None) -> bool:
    return known is not None and mine is not None and known != mine


def _plain(name: str | None) -> str:
    return (name or "").removesuffix(_EMULATED)


def named(path: str, *, emulated: bool) -> str:
    """Return how a topic or a subscription is known: that of an emulator is another than the one of the same name."""
    return f"{path}{_EMULATED}" if emulated else path
