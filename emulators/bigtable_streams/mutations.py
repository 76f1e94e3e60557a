"""What production refuses of a mutation before it does anything. The emulator does the first half and then complains.

Source: cloud.google.com/bigtable/quotas (keys, values, mutations per row) and google/bigtable/v2/data.proto, Mutation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from emulators.bigtable_streams.refusals import invalid, not_found

_KEY_BYTES: Final = 4_096
_QUALIFIER_BYTES: Final = 16_384
_MUTATIONS: Final = 100_000
_CELL_BYTES: Final = 100 * 1024 * 1024
_GRANULARITY: Final = 1_000
_INT64_BYTES: Final = 8


def check_mutations(mutations: Sequence[Any], row_key: bytes, table: str, families: Mapping[str, Any]) -> bool:
    """Raise RefusedError if one of a row's mutations cannot be applied; return whether one has no timestamp yet."""
    check_row_key(row_key)
    if not mutations:
        raise invalid("No mutations provided")
    if len(mutations) > _MUTATIONS:
        raise invalid(f"Too many mutations in one row: {len(mutations)}, at most {_MUTATIONS} are allowed")
    without_time = False
    for mutation in mutations:
        kind = mutation.WhichOneof("mutation")
        if kind is None:
            raise invalid("Mutation is not set")
        if kind == "delete_from_row":
            continue
        detail = getattr(mutation, kind)
        family = families.get(detail.family_name)
        if family is None:
            raise missing_family(row_key, table)
        match kind:
            case "set_cell":
                _check_aggregate(family, aggregate=False)
                _check_qualifier(detail.column_qualifier)
                _check_value(detail.value)
                without_time |= detail.timestamp_micros == -1
                _check_time(detail.timestamp_micros, may_be_now=True)
            case "add_to_cell" | "merge_to_cell":
                _check_aggregate(family, aggregate=True)
                _check_input(kind, detail, family)
            case "delete_from_column":
                _check_qualifier(detail.column_qualifier)
                _check_times(detail.time_range)
            case _:  # families have nothing more to them
                pass
    return without_time


def check_row_key(row_key: bytes) -> None:
    """Raise RefusedError if a row cannot have this key."""
    if not row_key:
        raise invalid("Row keys must be non-empty")
    if len(row_key) > _KEY_BYTES:
        raise invalid(f"Row key is too long: {len(row_key)} bytes, at most {_KEY_BYTES} are allowed")


def missing_family(row_key: bytes, table: str) -> Exception:
    """Make the refusal of a family that the table does not have."""
    key = row_key.decode(errors="backslashreplace")
    return not_found(f"Error while mutating the row '{key}' ({table}) : Requested column family not found.")


def set_times(mutations: Sequence[Any], now: int) -> None:
    """Give cells without a timestamp the server's time, in microseconds of millisecond granularity."""
    for mutation in mutations:
        if mutation.WhichOneof("mutation") == "set_cell" and mutation.set_cell.timestamp_micros == -1:
            mutation.set_cell.timestamp_micros = now - now % _GRANULARITY


def _check_aggregate(family: Any, *, aggregate: bool) -> None:
    if (family.value_type.WhichOneof("kind") == "aggregate_type") is not aggregate:
        wanted = (
            "an aggregate family takes AddToCell and MergeToCell only" if not aggregate else "not an aggregate family"
        )
        raise invalid(f"Mutation does not fit the type of its column family: {wanted}")


def _check_input(kind: str, detail: Any, family: Any) -> None:
    if detail.column_qualifier.WhichOneof("kind") != "raw_value":
        raise invalid("The column qualifier of an aggregate must be a raw_value")
    if detail.timestamp.WhichOneof("kind") != "raw_timestamp_micros":
        raise invalid("The timestamp of an aggregate must be raw_timestamp_micros")
    _check_qualifier(detail.column_qualifier.raw_value)
    _check_time(detail.timestamp.raw_timestamp_micros)
    aggregate = family.value_type.aggregate_type
    if kind == "merge_to_cell":
        if detail.input.WhichOneof("kind") != "raw_value":
            raise invalid("The input of MergeToCell must be a raw_value: the state of an aggregate")
        if aggregate.WhichOneof("aggregator") != "hllpp_unique_count" and len(detail.input.raw_value) != _INT64_BYTES:
            raise invalid("The state of an aggregate of INT64 has 8 bytes")
    elif aggregate.input_type.WhichOneof("kind") == "int64_type" and detail.input.WhichOneof("kind") != "int_value":
        raise invalid("The input of an aggregate of INT64 must be an int_value")


def check_rules(rules: Sequence[Any], row_key: bytes, table: str, families: Mapping[str, Any]) -> None:
    """Raise RefusedError if one of the rules of a ReadModifyWriteRow cannot be followed."""
    check_row_key(row_key)
    if not rules:
        raise invalid("No rules provided")
    for rule in rules:
        if rule.WhichOneof("rule") is None:
            raise invalid("Rule is not set")
        family = families.get(rule.family_name)
        if family is None:
            raise missing_family(row_key, table)
        _check_aggregate(family, aggregate=False)
        _check_qualifier(rule.column_qualifier)


def _check_qualifier(qualifier: bytes) -> None:
    if len(qualifier) > _QUALIFIER_BYTES:
        raise invalid(f"Column qualifier is too long: {len(qualifier)} bytes, at most {_QUALIFIER_BYTES} are allowed")


def _check_value(value: bytes) -> None:
    if len(value) > _CELL_BYTES:
        raise invalid(f"Cell value is too large: {len(value)} bytes, at most {_CELL_BYTES} are allowed")


def _check_time(micros: int, *, may_be_now: bool = False) -> None:
    if micros == -1 and may_be_now:
        return
    if micros < 0:
        raise invalid(f"Timestamp must not be negative: {micros}")
    if micros % _GRANULARITY:
        raise invalid(
            f"Timestamp granularity mismatch. Expected a multiple of {_GRANULARITY} (millisecond granularity), "
            f"but got {micros}."
        )


def _check_times(times: Any) -> None:
    _check_time(times.start_timestamp_micros)
    _check_time(times.end_timestamp_micros)
    if times.end_timestamp_micros and times.end_timestamp_micros <= times.start_timestamp_micros:
        raise invalid("The end of a time range must be after its start")
