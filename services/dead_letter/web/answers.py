"""The shapes of answers, for the OpenAPI document alone: what is answered is made by `core/documents.py`."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.dead_letter.core.dead_letters import Action, State
from services.dead_letter.core.plan import Verdict
from shared.contracts.reasons import Reason


class Line(BaseModel):
    """A dead letter as lists show it."""

    id: str
    state: State
    group: str
    reason: Reason
    detail: str
    table: str = Field(description="empty where the message could not be read")
    key: str = Field(description="the JSON array of the row's key")
    sequence: str
    commit_timestamp: str
    ordering_key: str
    failed_in: str
    size: int = Field(description="bytes that are kept")
    payload_bytes: int | None = Field(description="bytes that could not be kept: such a dead letter cannot be replayed")
    attempts: int = Field(description="how often it failed")
    replays: int
    first_failed_at: datetime
    last_failed_at: datetime
    arrived_at: datetime
    edit_of: str | None
    edited_as: str | None
    claimed_by: str | None = Field(description="the replay that holds it")
    claimed_until: datetime | None


class ListedDeadLetters(BaseModel):
    """Some dead letters, those that failed last first."""

    dead_letters: list[Line]
    after: str | None = Field(description="what to ask for the next page with; null at the end")
    matched: int = Field(description="dead letters on all pages")


class Entry(BaseModel):
    """A line of a trail: who did what, when, and what came of it."""

    at: datetime
    who: str
    action: Action
    result: str
    more: dict[str, str]


class Trail(BaseModel):
    """What was done to a dead letter, first things first."""

    trail: list[Entry]


class Payload(BaseModel):
    """What a dead letter's bytes hold; the rest depends on the kind."""

    kind: Literal["change_batch", "json", "bytes", "left_out"]


class ShownDeadLetter(Line):
    """A dead letter with what it holds and what was done to it."""

    attributes: dict[str, str]
    masked: bool = Field(description="whether the values of rows are left out")
    payload: Payload
    trail: list[Entry]


class Group(BaseModel):
    """Dead letters that fail for one cause."""

    id: str
    reason: Reason
    table: str
    detail: str = Field(description="without what differs between dead letters")
    dead_letters: int
    by_state: dict[str, int]
    first_failed_at: datetime
    last_failed_at: datetime
    sample: str = Field(description="its newest dead letter")


class Groups(BaseModel):
    """Groups, the largest first."""

    groups: list[Group]


class Stats(BaseModel):
    """What the store holds, in numbers."""

    by_state: dict[str, int]
    open_by_reason: dict[str, int]
    open_by_table: dict[str, int]
    oldest_open: datetime | None
    payload_bytes: int


class Changed(BaseModel):
    """What a decision about dead letters has come to."""

    state: State
    changed: int
    matched: int = Field(description="dead letters that the filters select, before")
    more: bool = Field(
        description="whether there are dead letters beyond the limit: ask again while `changed` is not 0"
    )


class Edited(BaseModel):
    """The copy that takes a dead letter's place."""

    id: str
    edit_of: str
    sequence: str
    diff: str


class Planned(BaseModel):
    """What becomes of a dead letter in a replay."""

    id: str
    table: str
    key: str
    sequence: str
    reason: Reason
    verdict: Verdict
    why: str


class Replayed(BaseModel):
    """How a replay went, or would go."""

    replay: str = Field(description="its id, as the trail has it")
    executed: bool
    matched: int = Field(description="dead letters that the filters select, before")
    verdicts: dict[str, int]
    sent: int = Field(description="confirmed by Pub/Sub")
    failed_again: int = Field(description="of those, come back already: their cause is not fixed")
    failing: dict[str, int] = Field(
        description="groups whose dead letters came back, with how many: it ended for them, or they were the last"
    )
    left_open: int
    stopped: bool = Field(description="it took too long, or the service was stopped: ask again, and it goes on")
    seconds: float
    mirrors_asked: bool = Field(description="whether it is known what is superseded (BIGQUERY_DATASET)")
    dead_letters: list[Planned] = Field(description="the first thousand")
    dead_letters_left_out: int


class Document(BaseModel):
    """An OpenAPI document."""

    openapi: str
    paths: dict[str, Any]
