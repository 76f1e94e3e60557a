"""Every reason there is: the real consumer dead-letters it, and it is collected, fixed, replayed, and applied.

All of them at once, on one consumer: what is wrong with one table has to hold up no other.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Flow, Service, wait_until_ready
from shared.contracts.reasons import Reason
from shared.pubsub.stubs import PublishRequest, PubsubMessage, publish_stub
from tests.builders import a_header
from tests.conftest import PROJECT
from tests.e2e.mending import TIMEOUT, Mending, a_mending, change, publish
from tests.e2e.reasons import BAD, GOOD, SCENARIOS, named, with_fix
from tests.integration.stand_in import StandIn
from tests.worlds.consumer import counter, ends

pytestmark = pytest.mark.timeout(1_800)

Row = tuple[str, int]
JUNK = PubsubMessage(data=b"\x00 no dead letter of ours", attributes={"who": "another publisher"})


class Everything:
    """The dead letters of all reasons, and the tables that they belong to."""

    def __init__(self, mending: Mending) -> None:
        self.mending = mending
        self.world = mending.world
        self.ids: dict[Reason, str] = {}
        self.expected: dict[Reason, dict[int, Row]] = {}

    def table(self, reason: Reason) -> str:
        return f"{PROJECT}.{self.world.pipeline.dataset}.{reason.value}"

    def prepare(self) -> None:
        """Publish everything, before there is a consumer."""
        for reason, scenario in sorted(SCENARIOS.items(), key=lambda item: -item[1].deliveries):
            if scenario.before:
                self.world.stand_in.run(scenario.before.format(table=self.table(reason)))
            if scenario.fault is not None:
                self.world.fault(table=self.table(reason), **scenario.fault)
            self.world.publish(*scenario.messages)
            if scenario.deliveries:  # those first, each alone
                self.world.deliver(scenario.deliveries)
            self.expected[reason] = {row: (named(reason, row), 1) for row in scenario.first}
        publish_stub(self.world.channel)(
            PublishRequest(topic=self.world.topology.dead_letter_topic, messages=[JUNK]), timeout=10
        )

    def collected(self) -> None:
        """Wait for a dead letter of each reason."""
        ids = [dead_letter["id"] for dead_letter in self.mending.dead_letters(len(Reason), "--limit", "100")]
        shown = self.mending.asked("show", *ids, "--values").stdout
        dead_letters = [json.loads(line) for line in shown.splitlines()]
        assert Counter(dead_letter["reason"] for dead_letter in dead_letters) == Counter(
            reason.value for reason in Reason
        )
        for dead_letter in dead_letters:
            reason = Reason(dead_letter["reason"])
            scenario = SCENARIOS[reason]
            assert scenario.detail in dead_letter["detail"], dead_letter
            source_table = scenario.source_table or reason.value
            assert dead_letter["table"] == ("" if scenario.table_unknown else source_table), dead_letter
            assert (dead_letter["state"], dead_letter["attempts"], dead_letter["replays"]) == ("open", 1, 0)
            self.ids[reason] = dead_letter["id"]

    def fixed(self, reason: Reason) -> None:
        """Expect of a table what its fix brings, or what its source writes again."""
        scenario = SCENARIOS[reason]
        rewritten = {GOOD: 1, BAD: 1} if scenario.rewritten else {}
        for row, seats in {**rewritten, **scenario.fixed}.items():
            self.expected[reason][row] = (named(reason, row), seats)

    def equal(self, reasons: Iterable[Reason] = Reason) -> None:
        """Wait until tables are as at their sources."""
        for reason in reasons:
            self.mending.wait_for(reason.value, self.expected[reason])

    def write_again(self, reason: Reason, seats: int) -> None:
        """Write the bad row once more at its source."""
        scenario = SCENARIOS[reason]
        header = a_header(scenario.source_table or reason.value)
        publish(self.world, header, change(BAD, 9, name=named(reason, BAD), seats=str(seats)))
        self.expected[reason][BAD] = (named(reason, BAD), seats)


@pytest.fixture
def everything(processes: Processes, pubsub_emulator: str, bigquery_stand_in: tuple[str, str]) -> Iterator[Everything]:
    rest, write_api = bigquery_stand_in
    name = f"letters-{uuid.uuid4().hex[:8]}"
    flow = Flow(pubsub=pubsub_emulator, bigquery_rest=rest, bigquery_grpc=write_api, project=PROJECT, name=name)
    with a_mending(processes, flow, StandIn(bigquery_stand_in)) as mending:
        yield Everything(mending)
        mending.world.fix()


def test_every_reason_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(Reason), "what is wrong for a new reason, and how it is fixed, is to be shown here"


def test_dead_letters_of_every_reason_are_fixed_replayed_and_applied_and_a_second_replay_changes_nothing(
    everything: Everything,
) -> None:
    everything.prepare()
    consumer = everything.world.launch(TASKS="1", LINGER="1s")
    everything.mending.start(consumer)
    everything.collected()
    everything.equal(reason for reason, scenario in SCENARIOS.items() if scenario.first)
    groups = everything.mending.answer("groups")["groups"]
    assert Counter(group["reason"] for group in groups) == Counter(reason.value for reason in Reason)

    permanent_dead_letters_come_back_and_are_discarded(everything)
    dead_letters_fixed_while_the_consumer_runs_are_applied(everything)
    consumer = dead_letters_fixed_by_the_tables_file_are_applied(everything, consumer)
    everything.equal()
    assert everything.mending.asked("list").returncode == 3, "no dead letter is open"
    newer_rows_stay_whatever_is_replayed(everything, consumer)


def permanent_dead_letters_come_back_and_are_discarded(everything: Everything) -> None:
    mending = everything.mending
    never = with_fix("never")
    ids = [word for reason, _scenario in never for word in ("--id", everything.ids[reason])]
    assert mending.answer("replay", *ids, "--execute")["sent"] == len(never)
    back = mending.dead_letters(len(never), *ids, "--state", "open")
    assert {dead_letter["attempts"] for dead_letter in back} == {2}, "the same dead letters, each failed once more"
    for reason, scenario in never:
        if scenario.uneditable:
            done = mending.asked("edit", everything.ids[reason], "--set", 'seats="1"', "--why", "it might do")
            assert (done.returncode, scenario.uneditable in done.stderr) == (1, True), done
        everything.world.publish(*scenario.rewritten)
        everything.fixed(reason)
    everything.equal(reason for reason, _scenario in never)
    assert mending.answer("discard", *ids, "--why", "written again at its source")["changed"] == len(never)
    refused = mending.answer("replay", *ids, "--execute")
    assert (refused["sent"], refused["verdicts"]["not_open"]) == (0, len(never))
    assert {dead_letter["why"] for dead_letter in refused["dead_letters"]} == {
        "it is discarded: to send it all the same, restore it"
    }


def dead_letters_fixed_while_the_consumer_runs_are_applied(everything: Everything) -> None:
    mending = everything.mending
    fixed = with_fix("edited", "table altered", "fixed elsewhere", "forced")
    for reason, scenario in fixed:
        everything.fixed(reason)
        if scenario.edit:
            mending.answer("edit", everything.ids[reason], *scenario.edit, "--why", "a word for a number")
        if scenario.statement:
            everything.world.stand_in.run(scenario.statement.format(table=everything.table(reason)))
    everything.world.fix()
    ((forced, _scenario),) = with_fix("forced")

    wanted = [word for reason, _scenario in fixed for word in ("--reason", reason.value)]
    assert mending.answer("replay", *wanted)["verdicts"]["send"] == len(fixed) - 1, "a dry run"
    document = mending.answer("replay", *wanted, "--execute", code=1)
    assert (document["sent"], document["verdicts"]["too_old_to_be_safe"]) == (len(fixed) - 1, 1)
    (why,) = [one["why"] for one in document["dead_letters"] if one["reason"] == forced.value]
    assert "could bring a deleted row back" in why
    everything.equal(reason for reason, _scenario in fixed if reason is not forced)
    assert mending.answer("replay", "--reason", forced.value, "--force", "--execute")["sent"] == 1
    everything.equal([forced])


def dead_letters_fixed_by_the_tables_file_are_applied(everything: Everything, consumer: Service) -> Service:
    """Stop the consumer, start one with a tables file, replay; return it."""
    mending = everything.mending
    assert ends(consumer) == 0
    file = mending.processes.directory / "tables.toml"
    file.write_text("\n".join(scenario.tables_file for _reason, scenario in with_fix("tables file")))
    mending.environment["TABLES_FILE"] = str(file)
    consumer = mending.world.launch(TABLES_FILE=str(file))
    wait_until_ready(mending.processes, consumer, timeout=TIMEOUT)
    reasons = [reason for reason, _scenario in with_fix("tables file")]
    wanted = [word for reason in reasons for word in ("--reason", reason.value)]
    assert mending.answer("replay", *wanted, "--execute")["sent"] == len(reasons)
    for reason in reasons:
        everything.fixed(reason)
    everything.equal(reasons)
    return consumer


def newer_rows_stay_whatever_is_replayed(everything: Everything, consumer: Service) -> None:
    """Write every bad row once more; then replay all twice, first not knowing and then knowing the mirrors."""
    mending = everything.mending
    for number, reason in enumerate(Reason):
        everything.write_again(reason, seats=100 + number)
    everything.equal()
    applied = [reason for reason, scenario in SCENARIOS.items() if scenario.fix != "never"]
    dataset = mending.environment["BIGQUERY_DATASET"]
    for known in ("", dataset):
        mending.environment["BIGQUERY_DATASET"] = known
        handled = counter(consumer, "leases_acked")
        assert mending.answer("restore", "--all", "--state", "replayed")["changed"] == len(applied)
        document = mending.answer("replay", "--all", "--force", "--execute")
        whole = Reason.NOT_APPLIED_IN_TIME  # a message of two changes: nobody asks the mirror about it
        superseded = len(applied) - 1 if known else 0
        assert (document["sent"], document["verdicts"]["superseded"]) == (len(applied) - superseded, superseded), whole
        mending.wait_until_handled(consumer, int(handled) + document["sent"])
        everything.equal()
    assert mending.asked("list").returncode == 3, "nothing has come back"
