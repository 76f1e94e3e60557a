"""The command `replay`: what would be sent, and with --execute what was."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Final

import typer

from services.dead_letter.app.decisions import FailingError, NotDoneError
from services.dead_letter.app.replay.replay import Outcome, Replay, ReplayOrder
from services.dead_letter.app.replay.replay_told import DEFAULT_RATE, Nobody, Told, replay_document
from services.dead_letter.commands.changing import All, refuse_everything
from services.dead_letter.commands.filters import Filters, no_letters, with_filters
from services.dead_letter.commands.output import SHORT, print_document, print_table, progress, say
from services.dead_letter.commands.reading import Json
from services.dead_letter.commands.tools import Tools
from services.dead_letter.core.letters import State
from services.dead_letter.core.plan import Planned, Verdict

_SHOWN: Final = 20
_WOULD_BE: Final = {
    Verdict.SEND: "would be sent",
    Verdict.SUPERSEDED: "superseded",
    Verdict.TOO_OLD: "too old to be safe",
    Verdict.WAITS: "waits for a person",
    Verdict.NO_PAYLOAD: "no payload",
    Verdict.NO_ROOM: "no room for marks",
    Verdict.HELD: "held by another replay",
    Verdict.NOT_OPEN: "not open",
}


def add_replaying(app: typer.Typer, tools: Tools) -> None:
    """Add the command that publishes letters again."""

    @app.command()
    @with_filters(tools.clock.now)
    def replay(
        filters: Filters,
        execute: Annotated[bool, typer.Option("--execute", help="Do it. Nothing is asked, nothing else.")] = False,
        rate: Annotated[
            float, typer.Option("--rate", min=0, help="Letters a second, at most; 0 for no limit.")
        ] = DEFAULT_RATE,
        limit: Annotated[int | None, typer.Option("--limit", min=1, help="Letters to send, at most.")] = None,
        force: Annotated[
            bool,
            typer.Option(
                "--force",
                help="Send also what is too old to be safe, which may bring deleted rows back, and what waits for a "
                "person.",
            ),
        ] = False,
        everything: All = False,
        json: Json = False,
    ) -> None:
        """Publish open letters again, by table, key, then sequence. Without --execute only show what would be sent.

        The same bytes, attributes, ordering key and sequence: a change that has become old loses to what is newer.
        Interrupted or killed, run it again: it goes on where it was. Try one first: --limit 1.

        Of each group twenty go first, and the others when those have not come back for five seconds. Where half of a
        group's letters come back, and ten at least, it ends: their cause is not mended, and more of them would make
        the consumer stop.

        Exits 0 when all that may be sent is sent (or, without --execute, there is something to be said), 1 when some
        of it stays open: too old to be safe, waiting for a person, without payload, held by another replay, failed
        again, or stopped before the end; 3 when no letter is as it was asked for; 4 when it has ended because what it
        sent comes back failing.

        --json: {"replay", "executed", "verdicts": {verdict: letters}, "sent", "failed_again", "failing": {group:
        letters}, "left_open", "stopped", "seconds", "mirrors_asked", "letters": [{"id", "table", "key", "sequence",
        "reason", "verdict", "why"}] (the first thousand), "letters_left_out"}.
        """
        if execute:
            refuse_everything(filters, everything)
        told = Told()
        began = time.monotonic()
        with (
            tools.stopping() as stop,
            tools.store() as store,
            tools.mirrors() as mirrors,
            tools.publisher(stop) if execute else nullcontext(Nobody()) as publisher,
        ):
            selection = filters.chosen(store, State.OPEN)
            total = store.count(selection)
            with progress("replayed" if execute else "judged", total if limit is None else None) as bar:

                def tell(judged: Sequence[Planned], so_far: Outcome) -> None:
                    told.add(judged)
                    bar.add(len(judged), f"{so_far.sent} sent" if execute else "")

                order = ReplayOrder(
                    selection=selection, who=tools.who, execute=execute, force=force, rate=rate or None, limit=limit
                )
                outcome = Replay(store, publisher, mirrors, tools.clock, stop, tools.max_replays, tools.tables()).run(
                    order, tell
                )
        seconds = time.monotonic() - began
        if json:
            print_document(replay_document(outcome, told, execute, seconds, asked=mirrors is not None))
        if not outcome.verdicts.total():
            if outcome.stopped:
                raise NotDoneError("stopped before the end: run it again")
            raise no_letters(selection)
        if not json:
            _print(outcome, told, execute, seconds, asked=mirrors is not None)
        if outcome.stopped:
            raise NotDoneError("stopped before the end: run it again, and it goes on")
        if outcome.failing:
            raise FailingError(_failing(outcome))
        if execute and outcome.left_open:
            raise NotDoneError(f"{outcome.left_open} of these letters stay open")


def _failing(outcome: Outcome) -> str:
    """Say which letters come back, and what to do."""
    count, group = sum(outcome.failing.values()), next(iter(outcome.failing))
    groups = f"group {group[:SHORT]}" if len(outcome.failing) == 1 else f"{len(outcome.failing)} groups"
    return (
        f"ended, because {count} letters of {groups} that were sent have come back: their cause is not mended. Look at "
        f"one (list, show), mend it, and run it again; what was not sent is open"
    )


def _print(outcome: Outcome, told: Told, execute: bool, seconds: float, *, asked: bool) -> None:
    names = _WOULD_BE | ({Verdict.SEND: "sent"} if execute else {})
    examples = {one.verdict: one.why for one in reversed(told.letters) if one.why}
    print_table(
        ("VERDICT", "LETTERS", "WHY"),
        [
            (names[verdict], count, examples.get(verdict, ""))
            for verdict in Verdict
            if (count := outcome.sent if execute and verdict is Verdict.SEND else outcome.verdicts[verdict])
        ],
    )
    if not execute:
        say("")
        print_table(
            ("ID", "TABLE", "KEY", "SEQUENCE", "VERDICT"),
            [
                (
                    one.letter.id[:SHORT],
                    one.letter.letter.table,
                    one.letter.letter.key,
                    one.letter.letter.sequence,
                    names[one.verdict],
                )
                for one in told.letters[:_SHOWN]
            ],
        )
        more = outcome.verdicts.total() - min(_SHOWN, len(told.letters))
        say(f"and {more} more" if more else "")
    if not asked:
        say("BIGQUERY_DATASET is not set: whether anything is superseded is not known (it loses by its sequence then)")
    if execute:
        rate = outcome.sent / max(seconds, 1e-3)
        say(f"replay {outcome.replay}: {outcome.sent} sent in {seconds:.1f} s, {rate:.0f} a second")
        if outcome.failed_again:
            say(f"{outcome.failed_again} of them failed again already: their cause is not mended (see groups)")
    else:
        say("nothing was sent: add --execute to do it")
