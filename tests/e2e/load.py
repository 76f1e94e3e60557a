"""Load on a source of each kind and on the topic, for as long as services are restarted, replaced or moved."""

import base64
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from deploy.local.platform.source import Write
from shared.contracts.change_batch import encode_batch
from tests.builders import a_change, a_header
from tests.e2e.rig import Message, Rig
from tests.integration.bigtable_front import FrontTable, set_cell

MARKER: Final = f"marked{uuid.uuid4().hex}"
"""In each value, so that a test can look for values where none may be."""
ROWS: Final = 40
AHEAD: Final = 20


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work in a thread while the block runs: until the event. What the work raises is raised after the block."""
    over, failed = threading.Event(), []

    def working() -> None:
        try:
            work(over)
        except Exception as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=working, name="load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


class Load:
    """Writes to both sources, and messages that can never be applied, until it is asked to stop.

    It waits for a mirror that is `AHEAD` behind: Spanner's emulator reads its change stream between transactions, and
    falls behind without an end where a busy machine has too many.
    """

    def __init__(self, rig: Rig, table: FrontTable) -> None:
        self._rig = rig
        self._table = table
        self._numbers = itertools.count()
        self._seen = 0
        self.target = rig.target
        """The dataset with the mirror that it waits for."""
        self.cells: dict[str, bytes] = {}
        self.poison = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write while the block runs; it may be another time, too."""
        with in_background(self._write):
            yield

    def _write(self, over: threading.Event) -> None:
        for number in self._numbers:
            if over.wait(0.15):  # the emulator takes one transaction at a time, and reads its stream between them
                return
            while number > self._seen + AHEAD and not over.is_set():
                rows = self.target.rows(self._rig.named("Singers")) or []
                self._seen = max((_number(row) for row in rows), default=self._seen)
                over.wait(0.5)
            key = number % ROWS
            self._rig.commit(
                Write("insert_or_update", "Singers", {"Id": key, "Name": f"{MARKER} {number}"}),
                Write("insert_or_update", "Tags", {"Tag": f"{MARKER} {number % 7}"}),
            )
            if number % 9 == 8:
                self._rig.commit(Write("delete", "Singers", {"Id": (number * 7) % ROWS}))
            self.cells[f"row-{key}"] = value = f"{MARKER} {number}".encode()
            self._table.write(f"row-{key}".encode(), set_cell("f", b"q", value))
            if number % 8 == 7:
                self._rig.publish([_undecodable(number), _unfit(number)])
                self.poison += 2


def _number(row: Mapping[str, Any]) -> int:
    return int(str(row["Name"]).rpartition(" ")[2])


def _undecodable(number: int) -> Message:
    return Message(f"{MARKER} {number}".encode(), {"table": "planes", "note": MARKER}, "planes/1")


def _unfit(number: int) -> Message:
    change = a_change(number, name=f"{MARKER} {number}", seats=MARKER)
    return Message(encode_batch(a_header(), [change]), {"table": "planes", "change_count": "1"}, "planes/1")


def mirrored(rows: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the rows of Bigtable as BigQuery has them."""
    found: dict[str, bytes] = {}
    for row in rows:
        cells: Any = row["f"]
        cells = json.loads(cells) if isinstance(cells, str) else cells
        found[str(row["row_key"])] = base64.b64decode(cells["q"])
    return found
