"""`docs/images/*.svg`: the pictures of the documents, drawn from boxes and arrows.

Each is 380 units wide, so that a telephone shows it without scrolling, and has its own background in light and dark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final, Literal

Kind = Literal["ours", "google", "other", "good", "bad"]
Point = tuple[int, int]

WIDTH: Final = 380
_LINE: Final = 17
_PADDING: Final = 9
_STYLE: Final = """
  svg { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
  .paper { fill: #ffffff; } .ink { fill: #1d2733; } .quiet { fill: #55606e; }
  .line { stroke: #55606e; stroke-width: 1.5; fill: none; } .tip { fill: #55606e; }
  rect.box { stroke-width: 1.2; }
  .ours { fill: #e3eefc; stroke: #3b73b9; } .google { fill: #eef0f2; stroke: #8792a0; }
  .other { fill: #ffffff; stroke: #8792a0; stroke-dasharray: 4 3; }
  .good { fill: #e2f4e6; stroke: #3c8a50; } .bad { fill: #fdeaea; stroke: #bb4a4a; }
  .title { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #161b22; } .ink { fill: #e6edf3; } .quiet { fill: #a9b4c0; }
    .line { stroke: #a9b4c0; } .tip { fill: #a9b4c0; }
    .ours { fill: #16304f; stroke: #6ea8f0; } .google { fill: #262d36; stroke: #8792a0; }
    .other { fill: #161b22; stroke: #8792a0; }
    .good { fill: #16381f; stroke: #62b877; } .bad { fill: #451c1c; stroke: #e07b7b; }
  }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a title and lines below it."""

    x: int
    y: int
    width: int
    lines: Sequence[str]
    kind: Kind = "ours"

    @property
    def height(self) -> int:
        """Return how high it is."""
        return len(self.lines) * _LINE + 2 * _PADDING

    def drawn(self) -> str:
        """Return it as SVG."""
        middle = self.x + self.width // 2
        text = "".join(
            f'<text class="{"ink title" if number == 0 else "quiet"}" x="{middle}" '
            f'y="{self.y + _PADDING + 13 + number * _LINE}" text-anchor="middle">{escape(line)}</text>'
            for number, line in enumerate(self.lines)
        )
        return (
            f'<rect class="box {self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" '
            f'rx="6"/>{text}'
        )


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line along points with a tip at its end, and words beside its middle."""

    points: Sequence[Point]
    label: str = ""
    at: Point | None = None

    def drawn(self) -> str:
        """Return it as SVG."""
        path = "M" + " L".join(f"{x} {y}" for x, y in self.points)
        line = f'<path class="line" d="{path}" marker-end="url(#tip)"/>'
        if not self.label:
            return line
        (x1, y1), (x2, y2) = self.points[0], self.points[1]
        x, y = self.at or ((x1 + x2) // 2 + 7, (y1 + y2) // 2 + 4)
        return f'{line}<text class="quiet" x="{x}" y="{y}">{escape(self.label)}</text>'


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text."""

    x: int
    y: int
    text: str

    def drawn(self) -> str:
        """Return it as SVG."""
        return f'<text class="quiet" x="{self.x}" y="{self.y}">{escape(self.text)}</text>'


def _picture(title: str, height: int, parts: Sequence[Box | Arrow | Words]) -> str:
    return picture(title, height, [part.drawn() for part in parts])


def picture(title: str, height: int, parts: Sequence[str]) -> str:
    """Return a picture of parts that are SVG already, on its background."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


def _down(above: Box, below: Box, label: str = "") -> Arrow:
    """Return an arrow from the middle of a box to the one below it."""
    x = above.x + above.width // 2
    return Arrow([(x, above.y + above.height), (x, below.y)], label)


def _journey(title: str, steps: Sequence[tuple[Kind, Sequence[str]]]) -> str:
    """Return numbered steps from top to bottom."""
    boxes: list[Box] = []
    y = 12
    for number, (kind, lines) in enumerate(steps, start=1):
        boxes.append(Box(20, y, WIDTH - 40, [f"{number}. {lines[0]}", *lines[1:]], kind))
        y += boxes[-1].height + 22
    arrows = [_down(above, below) for above, below in pairwise(boxes)]
    return _picture(title, y - 10, [*arrows, *boxes])


def pipeline() -> str:
    """Return the services and what flows between them."""
    spanner = Box(20, 12, 150, ["Spanner"], "google")
    bigtable = Box(200, 12, 150, ["Bigtable"], "google")
    spanner_reader = Box(20, 86, 150, ["spanner_reader"])
    bigtable_reader = Box(200, 86, 150, ["bigtable_reader"])
    topic = Box(20, 160, 330, ["Pub/Sub topic", "change batches"], "google")
    consumer = Box(20, 252, 150, ["cdc_consumer", "Spark"])
    others = Box(200, 252, 130, ["your own", "subscribers"], "other")
    bigquery = Box(20, 352, 150, ["BigQuery"], "google")
    dead_letter = Box(200, 352, 130, ["dead_letter"])
    boxes = [spanner, bigtable, spanner_reader, bigtable_reader, topic, consumer, others, bigquery, dead_letter]
    return _picture(
        "Spanner and Bigtable are read into a Pub/Sub topic, which cdc_consumer applies to BigQuery",
        400,
        [
            _down(spanner, spanner_reader, "change stream"),
            _down(bigtable, bigtable_reader, "change stream"),
            Arrow([(95, 121), (95, 160)]),
            Arrow([(275, 121), (275, 160)]),
            Arrow([(95, 212), (95, 252)]),
            Arrow([(265, 212), (265, 252)]),
            _down(consumer, bigquery, "upserts, deletes"),
            Arrow([(170, 290), (248, 330), (248, 352)], "dead letters", (255, 346)),
            Arrow([(330, 369), (362, 369), (362, 186), (350, 186)], "replay", (336, 388)),
            *boxes,
        ],
    )


def change() -> str:
    """Return one change's journey."""
    return _journey(
        "The journey of one change",
        [
            ("google", ["Spanner commits the row", "UPDATE flights ... at 09:00:00.123456"]),
            ("ours", ["spanner_reader reads the record", "sequence = commit time / record / change"]),
            ("ours", ["It publishes a change batch", "ordering key: table and bucket"]),
            ("google", ["Pub/Sub confirms"]),
            ("good", ["The reader moves the watermark", "progress is recorded last"]),
            ("ours", ["cdc_consumer pulls the message", "and keeps its lease while it works"]),
            ("ours", ["It parses columns, keeps the newest", "change of each key in the micro-batch"]),
            ("ours", ["It appends UPSERT with the sequence", "Storage Write API, change data capture"]),
            ("google", ["BigQuery accepts the row", "an older sequence would change nothing"]),
            ("good", ["The consumer acks the message", "progress is recorded last"]),
        ],
    )


def snapshot_row() -> str:
    """Return the journey of one row of a snapshot."""
    return _journey(
        "The journey of one snapshot row",
        [
            ("ours", ["The first start picks the time T", "where the change stream begins, too"]),
            ("ours", ["A reader takes a lease on a range", "of keys, a part of the table"]),
            ("google", ["Spanner reads the row as of T"]),
            ("ours", ["The row's sequence is T", "every later change wins over it"]),
            ("google", ["Pub/Sub confirms"]),
            ("good", ["The reader saves the last key", "progress is recorded last"]),
            ("ours", ["All ranges are read: the end is", "published as complete_since = T"]),
            ("ours", ["cdc_consumer labels the table", "older rows may be gone from the source"]),
        ],
    )


def reconcile() -> str:
    """Return the journey of one reconcile."""
    return _journey(
        "The journey of one reconcile",
        [
            ("ours", ["reconcile starts the reader's rows", "command as its child"]),
            ("google", ["The source is read once", "the mirror is read once"]),
            ("ours", ["Rows go into buckets by key", "temporary files, bounded memory"]),
            ("ours", ["Each bucket is compared", "column by column, by value"]),
            ("ours", ["Differing keys are read again", "first in the source, then in BigQuery"]),
            ("good", ["A difference counts when its row", "has stood still for --settle"]),
            ("other", ["--repair: the reader publishes the", "row as it is now; BigQuery takes it"]),
        ],
    )


def snapshot_states() -> str:
    """Return the states of a snapshot of one table."""
    x, side = 16, 236
    requested = Box(x, 12, 170, ["requested", "time T is stored"])
    reading = Box(x, 106, 170, ["reading", "ranges under leases"])
    read = Box(x, 216, 170, ["all ranges read"])
    complete = Box(x, 292, 170, ["complete since T", "announced in the topic"], "good")
    labelled = Box(x, 386, 170, ["mirror complete", "label on the table"], "good")
    deleted = Box(x, 480, 170, ["older rows deleted", "delete-missing-rows"], "good")
    waiting = Box(side, 12, 128, ["waits", "stream paused"], "other")
    again = Box(side, 106, 128, ["new time", "T is not kept", "or 23 h old"], "other")
    given_up = Box(side, 216, 128, ["canceled", "--cancel"], "bad")
    untold = Box(side, 292, 128, ["unannounced", "topic lost rows"], "bad")
    late = Box(side, 386, 128, ["rejected", "came 20 h late"], "bad")
    return _picture(
        "The states of a snapshot of one table",
        546,
        [
            _down(requested, reading, "leases"),
            _down(reading, read, "last key"),
            _down(read, complete),
            _down(complete, labelled, "consumer"),
            _down(labelled, deleted, "by hand or by itself"),
            Arrow([(186, 31), (236, 31)]),
            Arrow([(236, 46), (186, 46)]),
            Arrow([(186, 124), (236, 124)]),
            Arrow([(236, 142), (186, 142)]),
            Arrow([(186, 150), (210, 150), (210, 234), (236, 234)]),
            Arrow([(186, 240), (222, 240), (222, 312), (236, 312)]),
            Arrow([(186, 330), (222, 330), (222, 406), (236, 406)]),
            *(requested, reading, read, complete, labelled, deleted, waiting, again, given_up, untold, late),
        ],
    )


def failures() -> str:
    """Return what becomes of a change that cannot be applied."""
    x, side = 16, 228
    pulled = Box(x, 12, 160, ["message pulled"], "google")
    format_known = Box(x, 86, 160, ["is its format known?"])
    readable = Box(x, 170, 160, ["can it be read?"])
    table = Box(x, 260, 160, ["does BigQuery", "take the table?"])
    row = Box(x, 376, 160, ["does it take the row?"])
    acked = Box(x, 476, 160, ["acked"], "good")
    newer = Box(side, 78, 130, ["nack", "for 10 minutes"], "other")
    poison = Box(side, 162, 130, ["poison record", "cut out as it is"], "bad")
    nack = Box(side, 238, 130, ["one table fails:", "nack, then retry"], "other")
    wait = Box(side, 306, 130, ["all tables fail:", "wait with leases"], "other")
    dead_letter = Box(side, 390, 130, ["dead letter", "confirmed first"], "bad")
    stops = Box(side, 476, 130, ["too many: stop,", "exit code 2"], "bad")
    return _picture(
        "What becomes of a change that cannot be applied",
        542,
        [
            _down(pulled, format_known),
            _down(format_known, readable, "yes"),
            _down(readable, table, "yes"),
            _down(table, row, "yes"),
            _down(row, acked, "yes"),
            _down(dead_letter, stops),
            Arrow([(176, 104), (228, 104)], "no", (192, 98)),
            Arrow([(176, 188), (228, 188)], "no", (192, 182)),
            Arrow([(176, 272), (228, 272)], "no", (192, 266)),
            Arrow([(176, 296), (202, 296), (202, 332), (228, 332)]),
            Arrow([(176, 394), (202, 394), (202, 410), (228, 410)], "no", (184, 388)),
            Arrow([(358, 188), (370, 188), (370, 416), (358, 416)]),
            Arrow([(228, 430), (202, 430), (202, 494), (176, 494)]),
            *(pulled, format_known, readable, table, row, acked, newer, poison, nack, wait, dead_letter, stops),
        ],
    )


DRAWINGS: Final[Mapping[str, Callable[[], str]]] = {
    "images/pipeline.svg": pipeline,
    "images/change.svg": change,
    "images/snapshot-row.svg": snapshot_row,
    "images/reconcile.svg": reconcile,
    "images/snapshot-states.svg": snapshot_states,
    "images/failures.svg": failures,
}
