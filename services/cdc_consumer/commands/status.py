"""The command `status`: asks the running consumer how it is, and prints its answer."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TextIO

import msgspec

from services.cdc_consumer.app.status.status import DEFERRED, RUNNING
from services.cdc_consumer.commands.command_line import ConsumerStatusCommand
from shared.contracts.errors import MisconfiguredError
from shared.runtime.answers import print_answer
from shared.runtime.settings import read_settings, setting

_TIMEOUT: Final = 15.0  # seconds: longer than the service waits for BigQuery's listing
_EVERYWHERE: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104  addresses to listen on, not to ask at


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the consumer listens, by the settings that it was started with."""

    host: str = setting("the address that health and metrics listen on", default="127.0.0.1")
    port: int = setting("of health and metrics", default=8081, least=1, most=65_535)

    def __str__(self) -> str:
        """Return what can be asked at."""
        return f"{'127.0.0.1' if self.host in _EVERYWHERE else self.host}:{self.port}"


def status(command: ConsumerStatusCommand, environ: Mapping[str, str], out: TextIO) -> int:
    """Ask, print and return the exit code; MisconfiguredError where no consumer answers."""
    address = command.address or str(read_settings(Address, environ))
    document = ask_consumer(address)
    print_answer(document, lines(document), command.json, out)
    return exit_code(document)


def exit_code(document: Mapping[str, Any]) -> int:
    """Return 0 if the service and all of its tables run, else 1."""
    states = [document["state"], *(table["state"] for table in document["tables"])]
    return int(any(state != RUNNING for state in states))


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Return an answer as text, a line of the table for each table and for each further trouble of it."""
    yield f"{document['service']}: {document['state']} since {_moment(document['since'])}"
    rows = [("TABLE", "STATE", "SINCE", "LATEST COMMIT", "COMMIT TO TOPIC", "TOPIC TO BIGQUERY", "WHY")]
    for table in document["tables"]:
        lag = table["lag_seconds"]
        times = (
            _moment(table["committed"]),
            _seconds(lag["commit_to_published"]),
            _seconds(lag["published_to_applied"]),
        )
        first, *more = table["troubles"] or [{"state": RUNNING, "since": None, "why": ""}]
        rows.append((table["table"], first["state"], _moment(first["since"]), *times, first["why"]))
        rows += [("", each["state"], _moment(each["since"]), "", "", "", each["why"]) for each in more]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        yield "  ".join([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)] + [row[6]]).rstrip()
    if len(rows) == 1:
        yield "(no table yet)"
    for table in document["tables"]:
        if table.get("delete_missing_rows_before"):  # an older consumer may answer
            why = f": {table['deletion_refused']}" if table["deletion_refused"] else ""
            yield f"{table['table']}: rows older than {table['delete_missing_rows_before']} may wait to be deleted{why}"
    changes, lag, processes = document["changes"], document["lag_seconds"], document["processes"]
    dead_letters = ", ".join(f"{reason} {count}" for reason, count in sorted(changes["dead_letters"].items())) or "none"
    yield f"changes since the start: {changes['written']} written, {changes['superseded']} superseded by newer ones"
    yield f"dead letters since the start: {dead_letters}"
    yield (
        f"lag of the last change: {_seconds(lag['commit_to_published'])} from commit to topic, "
        f"{_seconds(lag['published_to_applied'])} from topic to BigQuery"
        + (f"; oldest outstanding message: {_oldest(document)}" if processes else "")
    )
    if processes:  # an older consumer may not know
        yield f"worker processes: {processes['seen']}, of which {processes['holding']} hold messages"
    if document["labels"]["error"]:
        read_at = document["labels"]["read_at"]
        as_of = f"as of {_moment(read_at)}" if read_at else "unknown"
        yield f"which tables are pending resync is {as_of}: {document['labels']['error']}"


def ask_consumer(address: str) -> Mapping[str, Any]:
    """Return what the consumer at an address says of itself; MisconfiguredError where none answers there."""
    try:
        with urllib.request.urlopen(f"http://{address}/status", timeout=_TIMEOUT) as answer:
            document: Mapping[str, Any] = msgspec.json.decode(answer.read())
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise MisconfiguredError(
            "no-consumer-answers",
            f"no consumer can be asked at {address} ({error}): is it running? --address HOST:PORT says where its "
            "health port is (its settings HOST and PORT)",
        ) from error
    if document.get("service") != "cdc_consumer":
        raise MisconfiguredError(
            "not-a-consumer", f"what answers at {address} is no cdc_consumer: name its health port with --address"
        )
    return document


def _moment(text: str | None) -> str:
    """Return a timestamp to the second, which is enough to read."""
    return "-" if text is None else text.partition(".")[0].rstrip("Z") + "Z"


def _oldest(document: Mapping[str, Any]) -> str:
    age = document["lag_seconds"]["oldest_outstanding"]
    if age is not None:
        return f"{_seconds(age)} old"
    deferred = any(each["state"] == DEFERRED for table in document["tables"] for each in table["troubles"])
    return "none; deferred messages come again by themselves" if deferred else "none"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}s"
