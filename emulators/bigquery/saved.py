"""The catalog as one JSON text, for a stand-in that keeps its data on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from emulators.bigquery.catalog import Dataset, DatasetName, Table
from emulators.bigquery.resources import read_table, table_resource


@dataclass(frozen=True)
class Saved:
    """All that the warehouse knows beside rows."""

    datasets: Sequence[Dataset] = ()
    tables: Sequence[Table] = ()
    numbers: int = 0
    with_changes: Sequence[int] = ()
    watermarks: Mapping[int, int] = field(default_factory=dict)


def to_json(saved: Saved) -> str:
    """Return the text."""
    document = {
        "datasets": [asdict(dataset) for dataset in saved.datasets],
        "tables": [
            {
                "resource": table_resource(table),
                "kept": {
                    name: getattr(table, name) for name in ("number", "version", "created", "modified", "dropped")
                },
            }
            for table in saved.tables
        ],
        "numbers": saved.numbers,
        "with_changes": list(saved.with_changes),
        "watermarks": {str(number): watermark for number, watermark in saved.watermarks.items()},
    }
    return msgspec.json.encode(document).decode()


def from_json(text: str) -> Saved:
    """Return what a text holds."""
    document: Any = msgspec.json.decode(text)
    return Saved(
        datasets=[Dataset(**{**dataset, "name": DatasetName(**dataset["name"])}) for dataset in document["datasets"]],
        tables=[_table(entry) for entry in document["tables"]],
        numbers=document["numbers"],
        with_changes=document["with_changes"],
        watermarks={int(number): watermark for number, watermark in document["watermarks"].items()},
    )


def _table(entry: Mapping[str, Any]) -> Table:
    reference = entry["resource"]["tableReference"]
    within = DatasetName(reference["projectId"], reference["datasetId"])
    return replace(read_table(within, entry["resource"]), **entry["kept"])
