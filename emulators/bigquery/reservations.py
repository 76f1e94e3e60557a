"""Reservations: capacity commitments, reservations and assignments, as statements make them and views show them.

Nothing is reserved: a statement's options are kept, and shown by the views of a region. Sources: BigQuery, "Data
definition language (DDL) statements in GoogleSQL" (CREATE and DROP CAPACITY, RESERVATION and ASSIGNMENT, ALTER
RESERVATION); "INFORMATION_SCHEMA.ASSIGNMENTS", ".RESERVATIONS" and ".CAPACITY_COMMITMENTS"; "Stream table updates with
change data capture", section "Configure a BigQuery reservation for use with CDC"; REST reference of assignments
(types of jobs).
"""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from emulators.bigquery.errors import ApiError, duplicate, invalid_query, not_found

_STATEMENT: Final = re.compile(
    r"(CAPACITY|RESERVATION|ASSIGNMENT)\s+(IF\s+(?:NOT\s+)?EXISTS\s+)?(`[^`]+`|[\w.\-]+(?:\.`[^`]+`)*)\s*(.*?);?\s*",
    re.DOTALL | re.IGNORECASE,
)
_OPTIONS: Final = re.compile(r"(?:SET\s+)?OPTIONS\s*\((.*)\)", re.DOTALL | re.IGNORECASE)
_IDENTIFIER: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_PARTS: Final = {"CAPACITY": 3, "RESERVATION": 3, "ASSIGNMENT": 4}
_KNOWN: Final[Mapping[str, Mapping[str, type]]] = {
    "CAPACITY": {"slot_count": int, "plan": str, "renewal_plan": str, "edition": str},
    "RESERVATION": {
        "slot_capacity": int,
        "ignore_idle_slots": bool,
        "target_job_concurrency": int,
        "edition": str,
        "autoscale_max_slots": int,
        "max_slots": int,
        "scaling_mode": str,
        "description": str,
    },
    "ASSIGNMENT": {"assignee": str, "job_type": str},
}
_REQUIRED: Final = {"CAPACITY": ("slot_count",), "RESERVATION": (), "ASSIGNMENT": ("assignee", "job_type")}
JOB_TYPES: Final = (
    "QUERY",
    "PIPELINE",
    "ML_EXTERNAL",
    "CONTINUOUS",
    "BACKGROUND",
    "BACKGROUND_CHANGE_DATA_CAPTURE",
    "BACKGROUND_COLUMN_METADATA_INDEX",
    "BACKGROUND_SEARCH_INDEX_REFRESH",
)
_ASSIGNEE: Final = re.compile(r"(project|folder|organization)s/([\w\-:.]+)")

_ASSIGNMENTS: Final = pa.schema(
    [
        ("ddl", pa.string()),
        ("project_id", pa.string()),
        ("project_number", pa.int64()),
        ("assignment_id", pa.string()),
        ("reservation_name", pa.string()),
        ("job_type", pa.string()),
        ("assignee_id", pa.string()),
        ("assignee_number", pa.int64()),
        ("assignee_type", pa.string()),
    ]
)
_RESERVATIONS: Final = pa.schema(
    [
        ("ddl", pa.string()),
        ("project_id", pa.string()),
        ("project_number", pa.int64()),
        ("reservation_name", pa.string()),
        ("ignore_idle_slots", pa.bool_()),
        ("slot_capacity", pa.int64()),
        ("target_job_concurrency", pa.int64()),
        ("edition", pa.string()),
    ]
)
_COMMITMENTS: Final = pa.schema(
    [
        ("ddl", pa.string()),
        ("project_id", pa.string()),
        ("project_number", pa.int64()),
        ("capacity_commitment_id", pa.string()),
        ("commitment_plan", pa.string()),
        ("state", pa.string()),
        ("slot_count", pa.int64()),
        ("edition", pa.string()),
        ("renewal_plan", pa.string()),
    ]
)


@dataclass(frozen=True)
class Reserved:
    """A commitment, a reservation or an assignment. ``path``: region, then its names."""

    kind: str
    project: str
    path: Sequence[str]
    ddl: str
    options: Mapping[str, object] = field(default_factory=dict)


class Reservations:
    """All there are, of all projects. Used from several threads; gone when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved: dict[tuple[str, str, Sequence[str]], Reserved] = {}

    def run(self, statement: exp.Command, project: str) -> tuple[str, str]:
        """Run a statement about one; return its type and what was done.

        Both are empty for any other statement; ApiError where it is refused.
        """
        verb = str(statement.this).upper()
        found = _STATEMENT.fullmatch(str(statement.args.get("expression") or "").strip())
        if found is None or verb not in ("CREATE", "ALTER", "DROP"):
            return "", ""
        kind, condition, name, rest = found[1].upper(), found[2], found[3], found[4]
        owner, path = _path(kind, name, project)
        made = Reserved(
            kind, owner, path, f"{verb} {found[0].strip()}", _options(kind, rest, complete=verb == "CREATE")
        )
        with self._lock:
            key = (kind, owner, path)
            before = self._reserved.get(key)
            self._check(verb, made, before, bool(condition))
            if verb == "CREATE" and before is None:
                self._reserved[key] = made
            elif verb == "ALTER" and before is not None:
                options = {**before.options, **made.options}
                self._reserved[key] = Reserved(kind, owner, path, before.ddl, options)
            elif verb == "DROP" and before is not None:
                del self._reserved[key]
            else:
                return f"{verb}_{kind}", "SKIP"
        return f"{verb}_{kind}", verb

    def _check(self, verb: str, made: Reserved, before: Reserved | None, conditional: bool) -> None:
        shown = f"{made.kind.capitalize()} {made.project}.{'.'.join(made.path)}"
        if verb == "CREATE" and before is not None and not conditional:
            raise duplicate(shown)
        if verb != "CREATE" and before is None and not conditional:
            raise not_found(shown)
        within = ("RESERVATION", made.project, made.path[:2])
        if verb == "CREATE" and made.kind == "ASSIGNMENT" and within not in self._reserved and made.path[1] != "none":
            raise not_found(f"Reservation {made.project}.{'.'.join(made.path[:2])}")
        used = any(each.kind == "ASSIGNMENT" and each.path[:2] == made.path for each in self._reserved.values())
        if verb == "DROP" and made.kind == "RESERVATION" and used:
            raise invalid_query(f"{shown} has assignments, which must be dropped first")

    def view(self, what: str, project: str, region: str) -> pa.Table | None:
        """Return a view of a project's in a region; None where the view is of something else."""
        rows = _VIEWS.get(what.removesuffix("_BY_PROJECT"))
        if rows is None:
            return None
        kind, schema = rows
        with self._lock:
            found = [r for r in self._reserved.values() if (r.kind, r.project, r.path[0]) == (kind, project, region)]
        return pa.Table.from_pylist([_row(each) for each in found], schema)


_VIEWS: Final[Mapping[str, tuple[str, pa.Schema]]] = {
    "ASSIGNMENTS": ("ASSIGNMENT", _ASSIGNMENTS),
    "RESERVATIONS": ("RESERVATION", _RESERVATIONS),
    "CAPACITY_COMMITMENTS": ("CAPACITY", _COMMITMENTS),
}
VIEWS: Final = tuple(_VIEWS)


def _row(reserved: Reserved) -> Mapping[str, object]:
    row: dict[str, object] = {"ddl": reserved.ddl, "project_id": reserved.project, **reserved.options}
    match reserved.kind:
        case "ASSIGNMENT":
            assignee = _ASSIGNEE.fullmatch(str(reserved.options["assignee"]))
            assert assignee is not None
            row |= {"reservation_name": reserved.path[1], "assignment_id": reserved.path[2]}
            row |= {"assignee_type": assignee[1], "assignee_id": assignee[2]}
        case "RESERVATION":
            row["reservation_name"] = reserved.path[1]
        case _:
            row |= {"capacity_commitment_id": reserved.path[1], "commitment_plan": reserved.options.get("plan")}
            row["state"] = "ACTIVE"
    return row


def _path(kind: str, name: str, project: str) -> tuple[str, tuple[str, ...]]:
    parts = name.replace("`", "").split(".")
    if len(parts) == _PARTS[kind] - 1:
        parts = [project, *parts]
    if len(parts) != _PARTS[kind] or not parts[1].lower().startswith("region-"):
        names = "RESERVATION_NAME.ASSIGNMENT_ID" if kind == "ASSIGNMENT" else f"{kind}_ID"
        raise invalid_query(f"Invalid name: {name}. It has the form PROJECT_ID.region-LOCATION.{names}")
    for part in parts[2:]:
        if _IDENTIFIER.fullmatch(part) is None:
            raise invalid_query(f"Invalid ID {part!r}: lower-case letters, numbers and dashes, 64 at most")
    return parts[0], (parts[1].lower(), *parts[2:])


def _options(kind: str, text: str, *, complete: bool) -> Mapping[str, object]:
    found = _OPTIONS.fullmatch(text.strip())
    if text.strip() and found is None:
        raise invalid_query(f"Syntax error: expected OPTIONS(...) in a statement about a {kind}")
    try:
        given = sqlglot.parse_one(f"SELECT STRUCT({found[1] if found else ''})", read="bigquery").expressions[0]
    except SqlglotError:
        raise invalid_query(f"Syntax error in the OPTIONS of a {kind}") from None
    options: dict[str, object] = {}
    for node in given.expressions:
        if not isinstance(node, exp.EQ | exp.PropertyEQ):
            raise invalid_query(f"Syntax error in the OPTIONS of a {kind}")
        options[node.this.name.lower()] = _value(kind, node.this.name.lower(), node.expression)
    missing = [name for name in _REQUIRED[kind] if complete and options.get(name) is None]
    if missing:
        raise invalid_query(f"Option {missing[0]} is required for a {kind}")
    if options.get("job_type") not in (None, *JOB_TYPES):
        raise invalid_query(f"Invalid job_type {options['job_type']!r}: it is one of {', '.join(JOB_TYPES)}")
    if "assignee" in options and _ASSIGNEE.fullmatch(str(options["assignee"])) is None:
        raise invalid_query(f"Invalid assignee {options['assignee']!r}: projects/ID, folders/ID or organizations/ID")
    return options


def _value(kind: str, name: str, node: exp.Expr) -> object:
    expected = _KNOWN[kind].get(name)
    if expected is None:
        raise ApiError("notImplemented", f"Unknown option of a {kind}, or this stand-in does not serve it: {name}")
    if isinstance(node, exp.Null):
        return None
    if expected is bool and isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal) and node.is_string is (expected is str) and expected is not bool:
        return expected(node.name)
    raise invalid_query(f"Option {name} of a {kind} has a value of another type")
