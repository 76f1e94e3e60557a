"""Whether rows of the mirror may be wrong, for something happened that no record contains; and what fixes that.

Such a *finding* is kept with the positions, in one cell, until all rows have come again. It holds the number of the
latest snapshot that had been asked for when it was found (`run`). No clock decides anything:

- That number is read after what was found, so a snapshot with a higher one was asked for after it and read after it. A
  snapshot heals a finding if its number is higher, all of it is published, and it covers all rows that are watched.
- Every change of the cell is conditional on the very write that was read, and is another one. So what is found
  while a snapshot is completed is either seen by the reader that takes findings away, and kept by its number, or makes
  that write fail, and it is decided again.
- A finding is stored before it is remembered what the table looks like now, and is taken away before it is remembered
  that the end of the snapshot was announced. A crash in between does either again. What is stored after the
  end was announced of a later snapshot, the next inspection takes away.
- Families are compared with those in the cell, and these are written together with the finding. So what two readers
  see is found once, by the first of them.
- Of each kind there is one finding: what is found again is added to it, and the number moves on. So families that are
  dropped one after the other are healed by a snapshot that was asked for after the last of them.
- What goes on for as long as readers do not stop (a profile that routes elsewhere) is found by each of them, and the
  number moves on: what was asked for meanwhile heals nothing.

A family that was dropped and added again between two inspections cannot be seen, nor one that was added, written to and
dropped: the instance reports names, and no more.
"""

from collections.abc import Callable, Collection
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from services.bigtable_reader.core.schema.watching import Watching, watched_more
from services.bigtable_reader.core.stream.records import Microseconds


class BigtableResyncKind(StrEnum):
    """What was found."""

    FAMILIES_DROPPED = "families_dropped"
    ROUTED_ELSEWHERE = "routed_to_another_cluster"
    STREAM_DISABLED = "change_stream_disabled"
    ANOTHER_NAME = "begun_anew_under_another_name"
    WATCHED_MORE = "tables_file_watches_more"
    TOPIC_LOST = "changes_lost_by_the_topic"


class BigtableResyncCause(msgspec.Struct, frozen=True, kw_only=True):
    """Rows may have changed without records. ``kind``: one of `BigtableResyncKind`, or of a newer version's."""

    kind: str
    found_at: Microseconds
    """The first time."""
    run: int
    """The latest snapshot that had been asked for when it was found the last time; 0: none."""
    families: tuple[str, ...] = ()
    """All that were dropped."""
    watching: str = ""
    """The digest of what the last inspection watched: rows of that are meant. Empty: none had inspected it."""
    options: tuple[str, ...] = ()
    """Those of the tables file that let in more than before."""
    times: int = 1
    """How often it was found: so that one who has seen it takes nothing away that was found since."""


class Resync(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept. ``families``: those that the table had when it was compared last; None: it never was."""

    families: tuple[str, ...] | None = None
    findings: tuple[BigtableResyncCause, ...] = ()
    watching: Watching | None = None
    """What the last inspection watched; None: none did yet."""
    writer: str = ""
    """Another one for each write, so that no value comes back."""


class BigtableResyncRequest(msgspec.Struct, frozen=True):
    """A table is pending resync: what was found of it, oldest first."""

    table: str
    findings: tuple[BigtableResyncCause, ...]

    @property
    def since(self) -> Microseconds:
        """Return when the first of it was found."""
        return min(finding.found_at for finding in self.findings)

    @property
    def run(self) -> int:
        """Return the snapshot after which one has to be asked for that heals all of it."""
        return max(finding.run for finding in self.findings)

    @property
    def lost_run(self) -> int:
        """Return the latest snapshot of which the topic may have lost rows, whatever of it was confirmed; 0: none."""
        return max(
            (finding.run for finding in self.findings if finding.kind == BigtableResyncKind.TOPIC_LOST), default=0
        )


def resync_request_of(table: str, kept: Resync | None) -> BigtableResyncRequest | None:
    """Return the resync request of a table, by its full name; None where nothing is to be fixed."""
    return (
        BigtableResyncRequest(table.rpartition("/")[2], kept.findings) if kept is not None and kept.findings else None
    )


# What happens to what is kept. Each returns all of it, or None for no change.


def compared(
    before: Resync | None,
    known: Collection[str] | None,
    found: Collection[str],
    is_watched: Callable[[str], bool],
    now: Microseconds,
    run: int,
    watching: Watching,
    notes: Collection[str] = (),
) -> Resync | None:
    """Compare families with those that are kept, or, where none are, with those that are known otherwise.

    And what is watched with what was: by a reader that ran before, or runs still. ``notes``: kinds of what was found
    since, and could not be kept: they are now.
    """
    kept = _watched_by(before or Resync(), watching, found, now, run)
    if not watching.mirrored:
        return None if kept == before else kept
    for kind in sorted(notes):
        kept = _with(kept, BigtableResyncCause(kind=kind, found_at=now, run=run))
    base = kept.families if kept.families is not None else known if known is not None else found
    dropped = tuple(sorted(name for name in set(base) - set(found) if is_watched(name)))
    after = replace(kept, families=tuple(sorted(found)))
    if dropped:
        after = _with(
            after,
            BigtableResyncCause(kind=BigtableResyncKind.FAMILIES_DROPPED, found_at=now, run=run, families=dropped),
        )
    return None if after == before else after


def with_finding(before: Resync | None, kind: BigtableResyncKind, now: Microseconds, run: int) -> Resync:
    """Keep a finding; the same again moves on the snapshot after which all rows have to come."""
    return _with(before or Resync(), BigtableResyncCause(kind=kind, found_at=now, run=run))


def heals(finding: BigtableResyncCause, watching: str) -> bool:
    """Return whether a snapshot of what is watched, by its digest, brings all rows that a finding means."""
    return finding.watching in ("", watching)


def healed(before: Resync | None, run: int, watching: str) -> Resync | None:
    """Delete the request that a snapshot has answered that all of is published; ``watching``: of what."""
    if before is None:
        return None
    left = tuple(finding for finding in before.findings if finding.run >= run or not heals(finding, watching))
    return None if left == before.findings else replace(before, findings=left)


def synced(before: Resync | None, request: BigtableResyncRequest) -> Resync | None:
    """Remove what a resync request has shown, and nothing that was found since."""
    if before is None:
        return None
    left = tuple(finding for finding in before.findings if finding not in request.findings)
    return None if left == before.findings else replace(before, findings=left)


def _watched_by(kept: Resync, watching: Watching, families: Collection[str], now: Microseconds, run: int) -> Resync:
    """Remember what is watched; where it is more than was, rows are missing that no record brings.

    A snapshot of what is watched now brings what was meant before, if that is no more.
    """
    if kept.watching == watching:
        return kept
    findings = kept.findings
    if watching.mirrored and (kept.watching is None or not watched_more(kept.watching, watching, families)):
        former = "" if kept.watching is None else kept.watching.digest
        findings = tuple(
            replace(one, watching=watching.digest) if one.watching in ("", former) else one for one in findings
        )
    after = replace(kept, watching=watching, findings=findings)
    more = () if kept.watching is None else tuple(watched_more(watching, kept.watching, families))
    return (
        _with(after, BigtableResyncCause(kind=BigtableResyncKind.WATCHED_MORE, found_at=now, run=run, options=more))
        if more
        else after
    )


def _with(kept: Resync, found: BigtableResyncCause) -> Resync:
    if kept.watching is not None:
        found = replace(found, watching=kept.watching.digest)
    findings: dict[tuple[str, str], BigtableResyncCause] = {}
    for one in (*kept.findings, found):  # among what is kept, too: what is watched may have become the same
        same = findings.get((one.kind, one.watching))
        findings[one.kind, one.watching] = one if same is None else _together(same, one)
    return replace(kept, findings=tuple(findings.values()))


def _together(first: BigtableResyncCause, again: BigtableResyncCause) -> BigtableResyncCause:
    return replace(
        first,
        run=max(first.run, again.run),
        families=tuple(sorted({*first.families, *again.families})),
        options=tuple(sorted({*first.options, *again.options})),
        times=first.times + again.times,
    )


def fix_of(request: BigtableResyncRequest) -> str:
    """Return what fixes a table that is pending resync."""
    command = "python -m services.bigtable_reader"
    first = ""
    if any(finding.kind == BigtableResyncKind.WATCHED_MORE for finding in request.findings):
        first = (
            "readers have had different tables files: let all of them have the one that is meant; a snapshot heals "
            "what its own file watches, and what only another file watched goes by `synced`. Then "
        )
    return first + (
        f"`{command} snapshot` brings all rows as they are now, and ends this once it is complete; rows may be "
        f"gone, too, of which no record tells: then `{command} snapshot --status` says what the table is complete "
        f"since, and `python -m services.cdc_consumer delete-missing-rows {request.table} --source '{command} rows' "
        "--before` that time says which go, and deletes them with --execute; if all rows came again otherwise: "
        f"`{command} synced`"
    )
