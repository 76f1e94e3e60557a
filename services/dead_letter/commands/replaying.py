"""The command `replay`: what would be sent, and with --execute what was."""

import time
from typing import Final

from services.dead_letter.app.decisions import FailingError, NotDoneError
from services.dead_letter.app.replay.replay import Outcome, ReplayOrder, replay_document
from services.dead_letter.commands.command_line import ReplayCommand
from services.dead_letter.commands.filters import no_dead_letters
from services.dead_letter.commands.output import SHORT, print_document, print_line, print_table, progress
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.plan import Verdict

_SHOWN: Final = 20
_WOULD_BE: Final = {
    Verdict.SEND: "would be sent",
    Verdict.SUPERSEDED: "superseded",
    Verdict.TOO_OLD: "too old to be safe",
    Verdict.WAITS: "waits for a person",
    Verdict.NO_PAYLOAD: "no payload",
    Verdict.NO_ROOM: "no room for marks",
    Verdict.CLAIMED: "claimed by another replay",
    Verdict.NOT_OPEN: "not open",
}


def replay(command: ReplayCommand, tools: CommandTools) -> None:
    """Publish open dead letters again, or show what would be sent."""
    if command.execute:
        command.refuse_everything(tools.clock.now(), everything=command.everything)
    began = time.monotonic()
    with (
        tools.stopping() as stop,
        tools.store() as store,
        tools.replay.opened(store, tools.clock, stop, execute=command.execute) as opened,
    ):
        selection = command.chosen(store, tools.clock.now(), State.OPEN)
        total = store.count(selection)
        with progress("replayed" if command.execute else "judged", total if command.limit is None else None) as bar:

            def report(so_far: Outcome) -> None:
                note = f"{so_far.sent} sent" if command.execute else ""
                bar(completed=so_far.verdicts.total(), note=note)

            order = ReplayOrder(
                selection=selection,
                who=tools.who,
                execute=command.execute,
                force=command.force,
                rate=command.rate or None,
                limit=command.limit,
            )
            outcome = opened.run(order, report)
    seconds = time.monotonic() - began
    if command.json:
        print_document(replay_document(outcome, seconds))
    if not outcome.verdicts.total():
        if outcome.stopped:
            raise NotDoneError("stopped before the end: run it again")
        raise no_dead_letters(selection)
    if not command.json:
        _print(outcome, seconds)
    if outcome.stopped:
        raise NotDoneError("stopped before the end: run it again, and it goes on")
    if outcome.failing:
        raise FailingError(_failing(outcome))
    if command.execute and outcome.left_open:
        raise NotDoneError(f"{outcome.left_open} of these dead letters stay open")


def _failing(outcome: Outcome) -> str:
    """Say which dead letters come back, and what to do."""
    count, group = sum(outcome.failing.values()), next(iter(outcome.failing))
    groups = f"group {group[:SHORT]}" if len(outcome.failing) == 1 else f"{len(outcome.failing)} groups"
    return (
        f"ended, because {count} sent dead letters of {groups} have come back: their cause is not fixed. Look at one "
        "(list, show), fix it, and run it again; what was not sent is open"
    )


def _print(outcome: Outcome, seconds: float) -> None:
    names = _WOULD_BE | ({Verdict.SEND: "sent"} if outcome.executed else {})
    examples = {one["verdict"]: one["why"] for one in reversed(outcome.dead_letters) if one["why"]}
    print_table(
        ("VERDICT", "DEAD LETTERS", "WHY"),
        [
            (names[verdict], count, examples.get(verdict.value, ""))
            for verdict in Verdict
            if (count := outcome.sent if outcome.executed and verdict is Verdict.SEND else outcome.verdicts[verdict])
        ],
    )
    if not outcome.executed:
        print_line("")
        shown = outcome.dead_letters[:_SHOWN]
        print_table(
            ("ID", "TABLE", "KEY", "SEQUENCE", "VERDICT"),
            [
                (str(one["id"])[:SHORT], one["table"], one["key"], one["sequence"], names[Verdict(one["verdict"])])
                for one in shown
            ],
        )
        more = outcome.verdicts.total() - len(shown)
        print_line(f"and {more} more" if more else "")
    if not outcome.mirrors_asked:
        print_line(
            "BIGQUERY_DATASET is not set: whether anything is superseded is not known (it loses by its sequence then)"
        )
    if outcome.executed:
        rate = outcome.sent / max(seconds, 1e-3)
        print_line(f"replay {outcome.replay}: {outcome.sent} sent in {seconds:.1f} s, {rate:.0f} a second")
        if outcome.failed_again:
            print_line(f"{outcome.failed_again} of them failed again already: their cause is not fixed (see groups)")
    else:
        print_line("nothing was sent: add --execute to do it")
