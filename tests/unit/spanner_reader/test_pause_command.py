"""The command that lets the stream, or tables, go on: what it says of that which stays paused."""

import asyncio
import io

from services.spanner_reader.commands.pause import resume
from services.spanner_reader.core.schema.shapes import SchemaInspection, TableShape
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.pauses import FakePauseStore, PauseTable
from tests.fakes.spanner_schema import Shapes


def test_resumed_without_a_name_it_names_the_tables_that_are_still_paused() -> None:
    async def scenario() -> None:
        look = SchemaInspection(Nanoseconds(1), False, {name: TableShape(()) for name in ("Singers", "Albums")})
        pauses = FakePauseStore(PauseTable(shapes=Shapes(look)))

        async def command(*arguments: str) -> tuple[int, str]:
            out = io.StringIO()
            return await resume(arguments, pauses, out), out.getvalue()

        assert await command() == (1, "the stream was not paused\n")
        assert await command("Singers") == (1, "Singers was not paused\n")
        for table in (None, "Singers", "Albums"):
            assert await pauses.pause(table)
        still = "still paused: Albums, Singers; `resume Albums Singers` lets them go on\n"
        assert await command() == (0, f"the stream goes on where it was\n{still}")
        assert await command() == (1, f"the stream was not paused\n{still}")
        assert (await command("Albums", "Singers"))[0] == 0
        assert await command() == (1, "the stream was not paused\n")

    asyncio.run(scenario())
