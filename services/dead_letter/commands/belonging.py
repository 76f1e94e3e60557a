"""The command `pipeline`: whose letters these are, and that they are another's from now on."""

from typing import Annotated

import typer

from services.dead_letter.commands.output import print_document, say
from services.dead_letter.commands.reading import Json
from services.dead_letter.commands.tools import Tools


def add_belonging(app: typer.Typer, tools: Tools) -> None:
    """Add the command that says of which pipeline the letters are."""

    @app.command()
    def pipeline(
        subscription: Annotated[
            str | None, typer.Option("--subscription", help="What they are collected from, from now on.")
        ] = None,
        topic: Annotated[str | None, typer.Option("--topic", help="Where they are replayed to, from now on.")] = None,
        json: Json = False,
    ) -> None:
        """Show of which pipeline the letters are: the subscription they come from, the topic they are replayed to.

        The first collector, and the first replay, say so; others are refused. With an option, that is another from now
        on: for a subscription or a topic that takes the place of the one before, of the same pipeline. Restart the
        service then. Two pipelines take two databases.

        --json: {"subscription": full name or null, "topic": full name or null}.
        """
        with tools.store() as store:
            new = tools.pipeline(subscription, topic)
            known = store.change_pipeline(new) if subscription or topic else store.pipeline()
        if json:
            print_document({"subscription": known.subscription, "topic": known.topic})
            return
        say(f"collected from {known.subscription or 'whatever comes first'}")
        say(f"replayed to {known.topic or 'whatever comes first'}")
