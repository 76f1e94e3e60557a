"""The command `watch`: what the console shows first, in a terminal."""

from collections.abc import Sequence
from datetime import timedelta

from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.commands.app import NOT_DONE, WRONG
from services.dead_letter.core.statuses import WatchedService
from shared.contracts.errors import TransientError
from tests.fakes.status_pages import FakeStatusPages
from tests.unit.dead_letter.dead_letters import NOW, a_dead_letter, at
from tests.worlds.console import HOSTILE, SERVICES, TRAFFIC, statuses
from tests.worlds.replaying import Shell


class Impatient(ServicePoller):
    """A poller whose services answer nothing before it is asked how they are."""

    def __init__(self, pages: FakeStatusPages, shell: Shell) -> None:
        super().__init__({"traffic": TRAFFIC}, pages, shell.world.clock, timedelta(0))
        self._given_up = pages.given_up

    def services(self) -> Sequence[WatchedService]:
        try:
            return super().services()
        finally:
            self._given_up.set()


def watch(shell: Shell, pages: FakeStatusPages, **services: str) -> int:
    shell.poller = ServicePoller(services or SERVICES, pages, shell.world.clock)
    return shell.run("watch")


def test_what_needs_attention_comes_first_with_its_command_then_sources_and_tables(shell: Shell) -> None:
    shell.world.keep(a_dead_letter())
    assert watch(shell, FakeStatusPages(statuses(at(NOW)))) == NOT_DONE

    lines = shell.out[shell.out.index("4 things need attention\n") :].splitlines()
    assert lines[1].startswith("! consumer: table flights is deferred, since 2026-11-21 13:00:00")
    assert "    $ ./millrace spanner-reader snapshot airports" in lines
    assert "- dead letters: 1 open dead letter, since 2026-11-21 13:00:00" in lines
    assert (
        "flights: reading, 2.5 s behind; published up to 2026-11-21 13:00:00; partitions: 3 running, 12 finished"
        in lines
    )
    assert "service consumer: ready, consumer, http://10.0.0.1:8080" in lines
    assert "service orders: refuses connections, unknown, http://10.0.0.4:8080" in lines
    assert "dead letters: 1 open, 0 replayed, 0 superseded, 0 discarded; oldest open: 2026-11-21 13:00:00" in lines
    assert "  flights: deferred, 0.4 s to the topic, 1.9 s to BigQuery" in lines
    assert "3 urgent" in shell.err


def test_where_nothing_is_urgent_it_ends_successfully_without_the_store_too(shell: Shell) -> None:
    shell.store_error = TransientError("it is away")
    assert watch(shell, FakeStatusPages(statuses(at(NOW))), traffic=TRAFFIC) == 0
    assert "nothing needs attention\n" in shell.out
    assert "the store: not to be had" in shell.out


def test_a_service_that_hangs_needs_attention_before_asking_it_is_given_up(shell: Shell) -> None:
    shell.poller = Impatient(FakeStatusPages(hanging={TRAFFIC}), shell)
    assert shell.run("watch") == NOT_DONE
    assert "! traffic: has not answered yet" in shell.out
    assert "what does not answer then hangs" in shell.out


def test_a_service_that_has_stopped_is_shown_as_it_was_with_the_age_of_that(shell: Shell) -> None:
    pages = FakeStatusPages(statuses(at(NOW)))
    shell.poller = ServicePoller({"traffic": TRAFFIC}, pages, shell.world.clock)
    shell.poller.poll("traffic")
    shell.world.clock.move(timedelta(minutes=7))
    del pages.documents[TRAFFIC]
    shell.poller.poll("traffic")
    assert shell.run("watch") == NOT_DONE
    assert "! traffic: refuses connections, since 2026-11-21 13:00:00" in shell.out
    assert "traffic: refuses connections, 0.8 s behind 0:07:00 ago, by its last answer" in shell.out


def test_what_a_service_answers_does_not_steer_the_terminal(shell: Shell) -> None:
    pages = FakeStatusPages({TRAFFIC: {"service": "spanner_reader", "state": HOSTILE}}, obstacles={TRAFFIC: HOSTILE})
    assert watch(shell, pages, traffic=TRAFFIC) == NOT_DONE
    assert "\\x1b[31m" in shell.out
    assert "\x1b" not in shell.out


def test_without_services_it_reports_which_setting_names_them(shell: Shell) -> None:
    assert shell.run("watch") == WRONG
    assert "set CONSOLE_SERVICES" in shell.err
