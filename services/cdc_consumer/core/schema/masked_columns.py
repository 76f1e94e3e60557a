"""What a table says of the columns that are masked or renamed in it: a label, by which another mask is noticed.

The label is a digest of the masks and names of those columns that the table has, and the fingerprint of the key. So
a column that the source gets later changes nothing of it but what its own addition does.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from services.cdc_consumer.core.types.masks import MaskKey
from shared.contracts.tables_file import TableOptions, TablesFile

MASKS: Final = "millrace_masks"
"""The label: 16 hexadecimal digits of the masks and names, and behind a dash those of the key, if there is any."""


@dataclass(frozen=True, slots=True)
class MaskedColumn:
    """A column that is masked or renamed, whether the table has it or not."""

    name: str
    """In BigQuery."""
    source: str
    mask: str
    """As the tables file has it; empty: it is only renamed."""

    @property
    def renamed(self) -> bool:
        """Return whether it has another name than at the source, other than by upper and lower case."""
        return self.name.upper() != self.source.upper()


@dataclass(frozen=True, slots=True)
class MaskedColumns:
    """Those of one table."""

    columns: tuple[MaskedColumn, ...] = ()
    key: str = ""
    """The fingerprint of the key; empty: no column is masked by a digest."""
    line_of: Callable[[str], str] = field(default=lambda _option: "the tables file", compare=False, repr=False)
    """Returns where the tables file has an option, in words: it takes a while."""

    def label(self, there: Collection[str]) -> str:
        """Return what a table with these columns (in upper case) is to say; empty: nothing."""
        masks = sorted(
            [one.name.upper(), one.source.upper(), one.mask] for one in self.columns if one.name.upper() in there
        )
        if not masks:
            return ""
        digest = hashlib.sha256(json.dumps(masks).encode()).hexdigest()[:16]
        return f"{digest}-{self.key}" if self.key and any(mask == "sha256" for *_names, mask in masks) else digest

    def changed(self, there: Collection[str], label: str, wanted: Collection[str]) -> str:
        """Return why rows of a table with a label hold other values than rows do now; empty: they do not.

        ``wanted``: the columns of these rows, in upper case as those that are ``there``.
        """
        now = self.label(there)
        if now != label:
            (_masks, _dash, before), (_now, _dash, after) = label.partition("-"), now.partition("-")
            if before and after and before != after:
                where = self.line_of("mask_key_file")
                return f"{where}: mask_key_file holds another key: its fingerprint was {before}, and is {after}"
            return "the tables file masks or names its columns in another way (masked_columns, renamed_columns)"
        for one in self.columns:
            name, source = one.name.upper(), one.source.upper()
            if one.renamed and name in wanted and name not in there and source in there:
                return f"{self.line_of('renamed_columns')}: its column {one.source} goes on as {one.name}"
        return ""


def masked_columns_of(table: str, options: TableOptions, file: TablesFile, key: MaskKey | None) -> MaskedColumns:
    """Return the columns of a source table that are masked or renamed."""
    if not (options.masked_columns or options.renamed_columns):
        return MaskedColumns()
    masks = {column.lower(): (column, str(mask)) for column, mask in options.masked_columns}
    names = {column.lower(): (column, name) for column, name in options.renamed_columns}
    columns = []
    for lower in sorted({*masks, *names}):
        source, mask = masks.get(lower, (names.get(lower, ("", ""))[0], ""))
        columns.append(MaskedColumn(names.get(lower, ("", source))[1], source, mask))
    hashed = any(one.mask == "sha256" for one in columns)

    def line_of(option: str) -> str:
        return file.line((option,)) if option == "mask_key_file" else file.where(table, option)

    return MaskedColumns(tuple(columns), key.fingerprint if key is not None and hashed else "", line_of)
