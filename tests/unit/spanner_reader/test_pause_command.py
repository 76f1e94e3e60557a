"""The commands that pause and resume: what they refuse, and what they say of that which stays paused."""

import io
import json
import re

import pytest

from services.spanner_reader.commands.command_line import COMMAND_LINE, SpannerPauseCommand, SpannerResumeCommand
from services.spanner_reader.commands.pause import pause, resume
from services.spanner_reader.core.schema.shapes import SchemaInspection, TableShape
from services.spanner_reader.ports import WatchedTable
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.pauses import FakePauseStore, PauseTable
from tests.fakes.spanner_schema import FakeCatalog, Shapes
from tests.worlds.command_lines import parsed


async def test_resumed_without_a_name_it_names_the_tables_that_are_still_paused() -> None:
    inspection = SchemaInspection(Nanoseconds(1), False, {name: TableShape(()) for name in ("Singers", "Albums")})
    pauses = FakePauseStore(PauseTable(shapes=Shapes(inspection)))

    async def command(*arguments: str) -> tuple[int, str]:
        out = io.StringIO()
        given = parsed(COMMAND_LINE, SpannerResumeCommand, "resume", *arguments)
        return await resume(given, pauses, out), out.getvalue()

    assert await command() == (1, "the stream was not paused\n")
    assert await command("Singers") == (1, "Singers was not paused\n")
    for table in (None, "Singers", "Albums"):
        assert await pauses.pause(table)
    still = "still paused: Albums, Singers; `resume Albums Singers` lets them go on\n"
    assert await command() == (0, f"the stream goes on where it was\n{still}")
    assert await command() == (1, f"the stream was not paused\n{still}")
    assert (await command("Albums", "Singers"))[0] == 0
    assert await command() == (1, "the stream was not paused\n")


async def test_a_table_that_is_refused_leaves_those_before_it_paused_and_they_are_named() -> None:
    inspection = SchemaInspection(Nanoseconds(1), False, {"Singers": TableShape(())})
    pauses, out = FakePauseStore(PauseTable(shapes=Shapes(inspection))), io.StringIO()
    catalog = FakeCatalog(*(WatchedTable(name, (), (), "NEW_ROW") for name in ("Singers", "Albums")))
    given = parsed(COMMAND_LINE, SpannerPauseCommand, "pause", "Singers", "Albums", "--json")
    with pytest.raises(MisconfiguredError, match="no reader has seen Albums"):
        await pause(given, catalog, pauses, lambda _table: True, out)
    assert json.loads(out.getvalue()) == {"paused": [{"table": "Singers", "changed": True}]}
    assert list((await pauses.read()).paused_tables) == ["Singers"]


async def test_a_name_that_is_no_mirrored_tables_pauses_nothing_and_is_refused_with_those_that_are() -> None:
    inspection = SchemaInspection(Nanoseconds(1), False, {"Singers": TableShape(())})
    pauses = FakePauseStore(PauseTable(shapes=Shapes(inspection)))
    catalog = FakeCatalog(*(WatchedTable(name, (), (), "NEW_ROW") for name in ("Singers", "Albums", "Secrets")))
    words = "not among the tables that are mirrored: Secrets, nope. Those are Albums, Singers"
    given = parsed(COMMAND_LINE, SpannerPauseCommand, "pause", "nope", "Singers", "Secrets")
    with pytest.raises(MisconfiguredError, match=f"^{re.escape(words)}"):
        await pause(given, catalog, pauses, lambda table: table != "Secrets", io.StringIO())
    assert not (await pauses.read()).paused_tables


class Unanswered(FakePauseStore):
    """Commits the first write, and does not answer it."""

    is_answered = False

    async def pause(self, table: str | None) -> bool:
        """Pause it."""
        return self._answered(await super().pause(table))

    async def resume(self, table: str | None) -> bool:
        """Resume it."""
        return self._answered(await super().resume(table))

    def _answered(self, changed: bool) -> bool:
        if not self.is_answered:
            self.is_answered = True
            raise TransientError("504 Deadline Exceeded")
        return changed


@pytest.mark.parametrize("table", [None, "Singers"])
async def test_what_a_commit_without_an_answer_has_done_is_said_of_the_command(table: str | None) -> None:
    inspection = SchemaInspection(Nanoseconds(1), False, {"Singers": TableShape(())})
    kept = PauseTable(shapes=Shapes(inspection))
    catalog = FakeCatalog(WatchedTable("Singers", (), (), "NEW_ROW"))
    names = [] if table is None else [table]
    out = io.StringIO()
    paused = parsed(COMMAND_LINE, SpannerPauseCommand, "pause", *names, "--json")
    assert await pause(paused, catalog, Unanswered(kept), lambda _table: True, out) == 0
    assert json.loads(out.getvalue())["paused"] == [{"table": table, "changed": True}]
    out = io.StringIO()
    assert await resume(parsed(COMMAND_LINE, SpannerResumeCommand, "resume", *names), Unanswered(kept), out) == 0
    assert "was not paused" not in out.getvalue()
