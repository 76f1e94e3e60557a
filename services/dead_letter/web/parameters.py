"""What requests are made of: parameters and bodies, each with its bounds. What is unknown is refused, by its name."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from services.dead_letter.app.decisions import with_usual_states
from services.dead_letter.app.replay.replay import DEFAULT_RATE
from services.dead_letter.core.dead_letters import DeadLetterId, GroupId, State
from services.dead_letter.core.selection import Selection, moment, sequence_bound
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

MOST_CHANGED: Final = 10_000
"""Dead letters that one request changes or sends, at most."""
_MOST_VALUES: Final = 20
_DEAD_LETTER: Final = r"^[0-9a-fA-F]{8,32}$"
_AGE: Final = r"^[0-9]{1,5}(\.[0-9]{1,3})?(ms|s|m|h|d)$"
_SEQUENCE: Final = r"^[0-9A-Fa-f]{1,16}(/[0-9A-Fa-f]{1,16}){0,3}$"
_AFTER: Final = r"^-?[0-9]{1,19}\.[0-9]{1,19}$"
_NO_NUL: Final = r"^[^\x00]*$"  # which PostgreSQL does not take
_WRITTEN: Final = r"^[^\x00]*[^\s\x00][^\x00]*$"
_EPOCH: Final = Nanoseconds(0)

Text = Annotated[str, StringConstraints(max_length=1024, pattern=_NO_NUL)]
GroupName = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,64}$")]
DeadLetterName = Annotated[str, StringConstraints(pattern=_DEAD_LETTER)]
Why = Annotated[str, StringConstraints(max_length=2000, pattern=_WRITTEN)]


def _is_moment(text: str) -> str:
    moment(text, _EPOCH)
    return text


def _is_number(given: object) -> object:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given
    raise ValueError("not a number")


Whole = Annotated[int, BeforeValidator(_is_number)]
"""A whole number as JSON has it, with ``.0`` too; no text and no boolean."""
Moment = Annotated[
    str,
    StringConstraints(max_length=64),
    AfterValidator(_is_moment),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 64,
            "anyOf": [{"format": "date-time"}, {"format": "date"}, {"pattern": _AGE}],
            "examples": ["2h", "2026-11-22", "2026-11-22T08:00:00Z"],
        }
    ),
]
Sequence = Annotated[str, StringConstraints(pattern=_SEQUENCE)]
"""A change sequence number."""


class Strict(BaseModel):
    """Refuses what it does not know, and says what it does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        unknown = sorted(map(str, given.keys() - cls.model_fields.keys())) if isinstance(given, Mapping) else []
        if unknown:
            raise ValueError(unknown_names(unknown, cls.model_fields))
        return given


def unknown_names(unknown: list[str], known: Mapping[str, object]) -> str:
    """Return what to say of names that are unknown; of their values nothing."""
    shown = ", ".join(name[:40] for name in unknown[:5])
    return f"{shown}: unknown here; known are {', '.join(known) or 'none'}"


class DeadLetterFilters(Strict):
    """Which dead letters are meant: everything given has to hold; of several values of one, any."""

    id: list[DeadLetterName] = Field(
        [], max_length=_MOST_VALUES, description="ids, or their first eight characters or more"
    )
    group: list[GroupName] = Field([], max_length=_MOST_VALUES, description="groups, by their ids")
    table: list[Text] = Field([], max_length=_MOST_VALUES, description="source tables")
    reason: list[Reason] = Field([], max_length=_MOST_VALUES, description="why they failed")
    key: list[Text] = Field([], max_length=_MOST_VALUES, description='keys of rows, as dead letters have them: ["a",1]')
    state: list[Literal["open", "replayed", "superseded", "discarded", "any"]] = Field(
        [], max_length=5, description="states, or any; without it, the usual ones of the operation"
    )
    since: Moment | None = Field(None, description="failed last at or after: an age (2h), a day, an RFC 3339 time")
    until: Moment | None = Field(None, description="failed last before")
    sequence_from: Sequence | None = Field(None, description="of this change sequence number or a newer one")
    sequence_until: Sequence | None = Field(None, description="of an older one than this")

    def selection(self, now: Nanoseconds) -> Selection:
        """Return what is meant, by the states that are given."""
        return Selection(
            ids=frozenset(DeadLetterId(one.lower()) for one in self.id),
            groups=frozenset(map(GroupId, self.group)),
            tables=frozenset(self.table),
            reasons=frozenset(self.reason),
            keys=frozenset(self.key),
            states=frozenset() if "any" in self.state else frozenset(map(State, self.state)),
            failed_from=_given(self.since, lambda text: moment(text, now)),
            failed_until=_given(self.until, lambda text: moment(text, now)),
            sequence_from=_given(self.sequence_from, sequence_bound),
            sequence_until=_given(self.sequence_until, sequence_bound),
        )

    def chosen(self, store: DeadLetterStore, now: Nanoseconds, *usual: State) -> Selection:
        """Return what is meant, with the usual states where neither states nor ids are given, and its ids in full.

        NothingFoundError naming an id that is none, or the beginning of several.
        """
        return with_usual_states(store, self.selection(now), *(() if self.state else usual))


_LISTS: Final = ("id", "group", "table", "reason", "key")
_BOUNDS: Final = ("since", "until", "sequence_from", "sequence_until")


def _given_one(name: str) -> dict[str, Any]:
    """Return the schema of a document that has this filter, and not as an empty one."""
    filled: dict[str, Any] = {"type": "array", "minItems": 1} if name in _LISTS else {"type": "string"}
    return {"required": [name], "properties": {name: {"const": True} if name == "everything" else filled}}


class Narrowed(DeadLetterFilters):
    """Which dead letters are meant: at least one filter beside the state, or ``everything``."""

    everything: Literal[True] | None = Field(
        None, description="mean every dead letter of the states: nothing else does"
    )

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [_given_one(name) for name in (*_LISTS, *_BOUNDS, "everything")]}
    )

    @model_validator(mode="after")
    def _narrow(self) -> "Narrowed":
        if not any(getattr(self, name) for name in (*_LISTS, *_BOUNDS, "everything")):
            raise ValueError("name the dead letters (id, group, table, ...), or everything: true for all of them")
        return self


class DeadLetterList(DeadLetterFilters):
    """The parameters of a list."""

    limit: int = Field(50, ge=1, le=500, description="dead letters on a page")
    after: str | None = Field(None, pattern=_AFTER, description="go on behind a page: its `after`")


class GroupList(DeadLetterFilters):
    """The parameters of the list of groups."""

    limit: int = Field(50, ge=1, le=500, description="groups, the largest first")


class Exporting(DeadLetterFilters):
    """The parameters of an export."""

    values: bool = Field(
        default=False,
        description="the dead letters' exact bytes; needs the right to write, and is written into the trail",
    )


class Showing(Strict):
    """The parameters of one dead letter."""

    values: bool = Field(
        default=False, description="show values of rows; takes the right to write, and is written into the trail"
    )


def _example(**body: JsonValue) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class Discarding(Strict):
    """What a request to discard says."""

    model_config = _example(dead_letters={"everything": True, "state": ["any"]}, why="a rehearsal's, not ours")

    dead_letters: Narrowed
    why: Why = Field(description="for the trail")
    limit: Whole = Field(MOST_CHANGED, ge=1, le=MOST_CHANGED, description="dead letters to change, at most")


class Restoring(Discarding):
    """What a request to restore says."""

    model_config = _example(dead_letters={"everything": True})

    why: Text = Field("", description="for the trail")


class Editing(Strict):
    """Other values for the row of a dead letter: of some columns (``set``), or the whole row."""

    why: Why = Field(description="for the trail: what was wrong")
    set: dict[str, JsonValue] | None = Field(None, description="columns, each with its value")
    row: dict[str, JsonValue] | None = Field(None, description="all columns outside the primary key")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"why": "typed wrong", "set": {"seats": 12}}],
            "oneOf": [
                {"required": ["set"], "properties": {"set": {"type": "object"}}},
                {"required": ["row"], "properties": {"row": {"type": "object"}}},
            ],
        }
    )

    @model_validator(mode="after")
    def _one(self) -> "Editing":
        if (self.set is None) is (self.row is None):
            raise ValueError("give set (some columns) or row (all of them), one of the two")
        return self


class Replaying(Strict):
    """What a replay is to do. Without ``execute`` nothing is sent, and the answer says what would be."""

    model_config = _example(dead_letters={"everything": True}, execute=True, limit=1)

    dead_letters: Narrowed
    execute: StrictBool = Field(default=False, description="do it")
    rate: StrictFloat = Field(DEFAULT_RATE, ge=0.1, le=100_000, description="dead letters a second, at most")
    limit: Whole = Field(1_000, ge=1, le=MOST_CHANGED, description="dead letters to send, at most")
    force: StrictBool = Field(
        default=False,
        description="send also what waits for a person, and what is too old to be safe: it may bring deleted rows back",
    )


def _given(text: str | None, read: Callable[[str], Any]) -> Any:
    return None if text is None else read(text)
