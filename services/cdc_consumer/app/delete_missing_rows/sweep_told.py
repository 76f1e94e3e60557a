"""What a sweep came to, as it is told to whoever asked for it."""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import msgspec

from services.cdc_consumer.app.delete_missing_rows.sweep import Swept, shown_time
from services.cdc_consumer.ports import MirrorTable


def exit_code(found: Swept) -> int:
    """Return 0 if nothing older stays in the mirror, or would after the deletion, and all is there; else 1."""
    return int(bool(found.living or found.keyless or found.refused or found.left or found.hidden or found.early))


def print_sweep(document: Mapping[str, Any], as_json: bool, out: TextIO) -> None:
    """Write a document as one JSON object, or as text."""
    if as_json:
        out.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    else:
        out.writelines(f"{line}\n" for line in lines(document))


def sweep_document(table: str, mirror: MirrorTable, found: Swept, *, execute: bool) -> Mapping[str, Any]:
    """Return what a sweep came to, ready for JSON."""
    return {
        "table": table,
        "mirror": mirror.definition.identity,
        "before": shown_time(found.before),
        "executed": execute,
        "older": found.older,
        "gone": found.gone,
        "some_gone": found.some_gone,
        "in_source": found.living,
        "some_in_source": found.some_living,
        "without_key": found.keyless,
        "deleted": found.deleted,
        "refused": found.refused,
        "left": found.left,
        "early": found.early,
        "hidden": found.hidden,
        "max_staleness_seconds": mirror.max_staleness.total_seconds(),
    }


def lines(document: Mapping[str, Any]) -> Sequence[str]:
    """Return a document as text."""
    mirror, some = document["mirror"], "  of these keys, among others: "
    told = [f"{mirror}: {document['older']} rows from before {document['before']}"]
    if document["in_source"]:
        told.append(
            f"{document['in_source']} of them are in the source and stay: their snapshot rows are on their way, or are "
            "dead letters"
        )
        told.append(some + ", ".join(document["some_in_source"]))
    if not document["executed"]:
        told.append(f"{document['gone']} are not in the source and would be deleted; --execute deletes them")
    else:
        told.append(f"{document['deleted']} are not in the source and were deleted")
    if document["gone"]:
        told.append(some + ", ".join(document["some_gone"]))
    if document["without_key"]:
        told.append(
            f"{document['without_key']} hold a NULL in their key: they are no rows of the source's, and no change can "
            "delete them: delete them in BigQuery"
        )
    if document["refused"]:
        told.append(f"BigQuery has refused the deletion of {document['refused']}")
    if document["left"]:
        told.append(f"{document['left']} are still there")
    if document["early"]:
        told.append(
            "it was made anew, or left out for a while, and rows of the snapshot may still be on their way: it goes on "
            "needing a re-sync until it has been complete for SWEEP_AFTER; sweep it again then"
        )
    if document["left"] or document["hidden"]:
        stale = document["max_staleness_seconds"]
        told += [f"queries of it may be {stale:.0f} s behind (max_staleness): look again then"] if stale else []
    return told
