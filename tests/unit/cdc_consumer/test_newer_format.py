"""A message of a newer wire format waits, and says which it is; nothing else does."""

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.commands.status import exit_code, lines
from services.cdc_consumer.core.reconcile.source_table import mirrored, source_rows
from services.cdc_consumer.core.stream.counts import Report
from shared.contracts import change_batch
from shared.contracts.change_batch import FORMAT, NewerFormatError, encode_batch
from shared.contracts.errors import MisconfiguredError
from tests.builders import a_change, a_header, a_message
from tests.unit.cdc_consumer.world import NOW, PUBLISHED, World

ATTRIBUTES = {"source": "s", "table": "planes", "format": "99"}


def newer(table: str = "planes", deliveries: int = 1, name: str = "1234567") -> Mapping[str, object]:
    """Return a message of which no more than format, source and table can be read."""
    document = {"header": {"format": 99, "source": "s", "table": table, "columns": "?"}, "changes": 5}
    return dict(a_message(data=json.dumps(document).encode(), delivery_attempt=deliveries)) | {
        "message_id": name,
        "publish_time": PUBLISHED,
        "attributes": list((ATTRIBUTES | {"table": table}).items()),
    }


def test_it_waits_and_other_messages_of_its_table_and_others_are_applied(world: World) -> None:
    airports = a_header("airports")
    garbage = a_message(data=b"garbage")
    counts = world.apply(newer(), a_message(a_change(1)), newer(), a_message(a_change(2), header=airports), garbage)

    assert (counts.acked, counts.deferred, counts.dead_letters) == (3, 2, {"undecodable": 1})
    assert world.leases.acked == ["a1", "a3", "a4"]
    assert (world.names(), world.names("airports")) == ({1: "name 1"}, {2: "name 1"})


@pytest.mark.parametrize("deliveries", [1, 2, 3, 50, 99])
def test_each_delivery_is_as_far_from_the_next_as_pubsub_allows(world: World, deliveries: int) -> None:
    """A reader that is upgraded too early spends the attempts of every message: 99 waits are 16 hours and a half."""
    for _ in range(3):
        counts = world.apply(*[newer(deliveries=deliveries, name=f"{n}") for n in range(250)])
        assert counts.deferred == 250
        assert set(world.leases.deferred_for.values()) == {timedelta(seconds=600)}
        assert (world.leases.acked, world.dead_letters.kept, world.crash_counts.over) == ([], {}, {})
        assert counts.deferred_until == (NOW + 600 * 10**9) // 1_000, "a drain ends with exit code 3"


def test_what_waited_is_applied_after_the_upgrade_and_waits_again_after_the_way_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row image has format 2. The older consumer is this one, which then reads format 1 at most."""
    row_image = structs.replace(a_header(), content="images", format=2)

    def published(sequence: int) -> Mapping[str, object]:
        return a_message(a_change(1, sequence), header=row_image)

    with monkeypatch.context() as before:
        before.setattr(change_batch, "FORMAT", 1)
        counts = world.apply(published(3), a_message(a_change(2, 1)))
        assert (counts.acked, counts.deferred, world.names()) == (1, 1, {2: "name 1"})

    counts = world.apply(published(3), published(2))
    assert (counts.acked, counts.deferred, world.names()) == (2, 0, {1: "name 3", 2: "name 1"})

    with monkeypatch.context() as back:
        back.setattr(change_batch, "FORMAT", 1)
        counts = world.apply(published(4), a_message(a_change(2, 5)))
        assert (counts.acked, counts.deferred, world.names()) == (1, 1, {1: "name 3", 2: "name 5"})

    world.apply(published(4))
    assert world.names() == {1: "name 4", 2: "name 5"}
    assert world.dead_letters.kept == {}


def test_status_names_message_time_and_attributes_until_it_comes_again(world: World) -> None:
    status = ConsumerStatus(world.clock, lambda _datasets: (), lambda _mirror: None)

    def shown() -> tuple[int, str]:
        document = status.document(ready=True, alive=True)
        return exit_code(document), "\n".join(lines(document))

    status.take(Report(counts=world.apply(newer(), newer(name="2"), a_message(a_change(1)))))
    status.take(Report(counts=world.apply(a_message(a_change(2)))))
    for _ in range(2):
        code, text = shown()
        assert code == 1
        for part in ("planes  deferred", "1234567", PUBLISHED.isoformat(), "wire format 99", "messages that wait: 2"):
            assert part in text
        assert all(f"{name!r}: {value!r}" in text for name, value in ATTRIBUTES.items())
        assert "upgrade the consumer" in text
        world.clock.pass_time(timedelta(minutes=10))
    world.clock.pass_time(timedelta(minutes=2))
    assert shown()[0] == 0, "it was forwarded, or somebody acked it"


def test_the_log_names_the_first_message_of_each_table_and_format(world: World) -> None:
    with capture_logs() as logs:
        for _ in range(2):
            world.apply(newer(), newer(name="2"), newer("airports"))

    logged = [one for one in logs if one["event"] == "newer_format_waits"]
    assert [(one["source_table"], one["message_id"], one["format"]) for one in logged] == [
        ("planes", "1234567", 99),
        ("airports", "1234567", 99),
    ]
    assert logged[0]["attributes"] == ATTRIBUTES
    assert "upgrade the consumer" in logged[0]["fix"]


def test_it_hides_no_trip_of_the_limit(world: World) -> None:
    garbage = [a_message(data=b"{ %d" % number) for number in range(101)]
    with pytest.raises(MisconfiguredError, match="101 of the last 101 messages"):
        world.apply(*garbage, *[newer() for _ in range(200)])


def test_a_source_of_a_newer_format_is_not_compared() -> None:
    batch = encode_batch(a_header(), [a_change(1)])
    with pytest.raises(NewerFormatError, match=f"wire format {FORMAT + 1}"):
        source_rows(mirrored(batch), [encode_batch(structs.replace(a_header(), format=FORMAT + 1), [a_change(1)])])


def test_the_error_is_the_same_in_another_process() -> None:
    error = NewerFormatError(9, "s", "t")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("section", ["[defaults]", "[tables.planes]"])
@pytest.mark.parametrize("text", ['ignored_columns = ["ID"]', 'renamed_columns = { ID = "other" }'])
def test_a_table_that_does_not_fit_the_tables_file_waits_and_stops_no_other(section: str, text: str) -> None:
    """A table made after the start may have such a key, and any program that may publish may name one."""
    world = World(tables_file=f"{section}\n{text}\n[tables.airports]\nignored_columns = []\nrenamed_columns = {{}}\n")
    with capture_logs() as logs:
        counts = world.apply(
            a_message(a_change(1)),
            a_message(a_change(2), header=a_header("airports")),
            a_message(a_change(3)),
        )

    assert (counts.acked, counts.deferred, counts.dead_letters, counts.changes) == (1, 2, {}, 1)
    assert world.names("airports") == {2: "name 1"}
    assert set(world.leases.deferred_for.values()) == {timedelta(seconds=600)}
    (line,) = [one for one in logs if one["event"] == "table_refused_by_tables_file"]
    assert (line["log_level"], line["source_table"]) == ("error", "planes")
    assert "names column ID of table planes" in line["fix"]
    assert "[key-column-changed]" in line["fix"]
    assert "take it out of" in str(counts.tables["planes"].deferred)
