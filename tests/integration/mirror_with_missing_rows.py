"""A mirror of the things that `answering_source` answers for, on the stand-in, and the commands that delete them."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.commands.command_line import COMMAND_LINE, DeleteMissingRowsCommand, ReconcileCommand
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.wiring.delete_missing_rows import delete_missing_rows_command
from services.cdc_consumer.wiring.reconcile import reconcile
from shared.bigquery.client import open_client
from shared.contracts.change_batch import Change, Op
from shared.contracts.change_sequence import four_sections
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.builders import a_message, messages_table
from tests.integration.answering_source import HEADER
from tests.integration.stand_in import PROJECT, StandIn
from tests.worlds.command_lines import parsed

T = 4_000_000_000_000_000
"""Complete since, in microseconds: long after any table of a test is made."""
SOURCE = "python -m tests.integration.answering_source"
"""It has the things from 1 to 1000."""
GONE = range(2_000, 2_005)
LIVING = range(5, 8)
NEWER = range(10, 13)


@dataclass
class Mirror:
    """The mirror of the things that the source answers for, and the command."""

    stand_in: StandIn
    addresses: tuple[str, str]
    tables_file: Path | None = None

    def write(self, keys: Sequence[int], micros: int, op: Op = "UPSERT") -> None:
        """Apply a change of each thing."""
        changes = [
            Change(
                op=op,
                mod_type="INSERT",
                sequence=str(four_sections(micros)),
                commit_timestamp=shown(micros),
                place="{}",
                key=json.dumps({"Id": str(key)}),
                row=None if op == "DELETE" else json.dumps({"Note": f"note {key}"}),
            )
            for key in keys
        ]
        text = self.tables_file.read_text() if self.tables_file else ""
        plan = Plan(read_tables_file(text), self.stand_in.dataset)
        messages = messages_table(a_message(*changes, header=HEADER))
        decoded = decode_messages(messages, Nanoseconds(0), plan)
        assert decoded.poison == []
        tables = BigQueryTables(open_client(PROJECT, self.addresses[0]), PROJECT, self.stand_in.dataset)
        with open_storage_channel(self.addresses[1]) as channel:
            writer = AppendStreams(channel, PROJECT, self.stand_in.dataset, Stop(), SystemClock())
            for table in decoded.tables:
                tables.ensure(table.definition)
                assert writer.append(table.definition, table.rows).refused() == []
            writer.close()

    @property
    def table(self) -> bigquery.Table:
        return self.stand_in.client.get_table(f"{PROJECT}.{self.stand_in.dataset}.Things")

    def label(self, **labels: str | None) -> None:
        table = self.table
        table.labels = {**table.labels, **labels}
        self.stand_in.client.update_table(table, ["labels"])

    def keys(self, which: str = "TRUE") -> list[int]:
        return [key for (key,) in self.stand_in.run(f"SELECT Id FROM Things WHERE {which} ORDER BY Id")]

    def environment(self) -> dict[str, str]:
        """Return the settings of a consumer."""
        return {
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "SUBSCRIPTION": "s",
            "DEAD_LETTER_TOPIC": "d",
            "BIGQUERY_DATASET": self.stand_in.dataset,
            "BIGQUERY_EMULATOR_HOST": self.addresses[0],
            "BIGQUERY_STORAGE_EMULATOR_HOST": self.addresses[1],
        } | ({"TABLES_FILE": str(self.tables_file)} if self.tables_file else {})

    def reconcile(self, *arguments: str) -> tuple[int, str]:
        """Compare tables with what the source answers; return the exit code and what was printed."""
        out = io.StringIO()
        words = [*arguments, "--settle", "0s", "--source", SOURCE]
        given = parsed(COMMAND_LINE, ReconcileCommand, "reconcile", *words)
        return reconcile(given, self.environment(), Stop(), out), out.getvalue()

    def delete_missing_rows(self, *arguments: str, before: int = T) -> tuple[int, Mapping[str, Any]]:
        out = io.StringIO()
        environ = self.environment() | {"SOURCE_ROWS": SOURCE}
        given = parsed(
            COMMAND_LINE,
            DeleteMissingRowsCommand,
            "delete-missing-rows",
            "Things",
            "--before",
            shown(before),
            "--json",
            *arguments,
        )
        code = delete_missing_rows_command(given, environ, out, Stop())
        return code, json.loads(out.getvalue())


def shown(micros: int) -> str:
    return format_timestamp(Nanoseconds(micros * 1_000))
