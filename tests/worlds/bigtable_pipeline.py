"""A watched Bigtable table, a topic, and readers as processes between them."""

import base64
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import grpc

from deploy.local.platform.processes import Processes
from shared.contracts.change_batch import ChangeBatch, decode_batch
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from tests.integration.bigtable_front import FrontTable, set_cell
from tests.integration.pubsub_topics import pull
from tests.integration.readers import Readers

Mirror = Mapping[bytes, Mapping[str, Mapping[str, str] | None]]


@dataclass
class BigtablePipeline(Readers):
    """A watched table, a topic, and readers between them."""

    module = "services.bigtable_reader"
    noted: ClassVar[Collection[str]] = ("stream", "snapshot")
    """Of which origin the changes in `arrived` are."""

    table: FrontTable
    pubsub: str
    channel: grpc.Channel
    topology: PubsubTopology
    processes: Processes
    partitions: str = field(default_factory=lambda: f"partitions-{uuid.uuid4().hex[:8]}")
    newest: dict[bytes, tuple[str, str | None]] = field(default_factory=dict)
    """Sequence and row of the newest change of each row key."""
    arrived: list[tuple[bytes, str, str]] = field(default_factory=list)
    """Row key, sequence and row of each change, in the order of their arrival."""
    lines: set[str] = field(default_factory=set)
    changes: int = 0
    messages: set[str] = field(default_factory=set)

    def environment(self) -> dict[str, str]:
        """Return the settings of a reader."""
        return {
            **self.table.settings(),
            "PARTITION_TABLE": self.partitions,
            "TOPIC": short_name(self.topology.topic),
            "DEAD_LETTER_TOPIC": short_name(self.topology.dead_letter_topic),
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "HEARTBEAT_INTERVAL": "1s",
            "LEASE_DURATION": "5s",
            "WAIT_FOR_MERGE": "5s",
            "PORT": "0",
        }

    def write(self) -> None:
        """Write a row of its own, in the family f."""
        self.table.write(uuid.uuid4().hex.encode(), set_cell("f", b"q", b"v"))

    def wait_for_all(self) -> None:
        """Wait until the mirror of the family f is what the table is."""
        self.wait_until_equal("f")

    def pull(self) -> None:
        """Take what is on the subscription now, and apply it as a consumer does: by sequence."""
        for one in pull(self.channel, self.topology.subscription):
            if one.message.message_id in self.messages:
                continue
            self.messages.add(one.message.message_id)
            self.apply(decode_batch(one.message.data))

    def apply(self, batch: ChangeBatch) -> None:
        """Note what has arrived."""
        self.changes += len(batch)
        for key, sequence, row in zip(batch.keys, batch.sequence, batch.rows, strict=True):
            if batch.header.content == "entries":
                self.lines.add(json.loads(bytes(key))["id"])
                continue
            row_key = json.loads(bytes(key))["row_key"].encode()
            text = bytes(row).decode()
            if batch.header.origin in self.noted:
                self.arrived.append((row_key, sequence, text))
            if row_key not in self.newest or sequence > self.newest[row_key][0]:
                self.newest[row_key] = sequence, None if text == "null" else text

    def mirror(self) -> Mirror:
        """Return the rows that a consumer would have."""
        return {
            row_key: {family: json.loads(text) if text else None for family, text in json.loads(row).items()}
            for row_key, (_sequence, row) in self.newest.items()
            if row is not None
        }

    def source(self, *families: str) -> Mirror:
        """Return what the mirror should be: of each column the newest version."""
        wanted: dict[bytes, dict[str, dict[str, str] | None]] = {}
        for row_key, cells in self.table.rows().items():
            row = wanted[row_key] = dict.fromkeys(families)
            for (family, qualifier, _timestamp), value in sorted(cells.items(), key=lambda cell: cell[0][2]):
                columns = row[family] = row[family] or {}
                columns[qualifier.decode()] = base64.b64encode(value).decode()
        return wanted

    def wait_until_equal(self, *families: str) -> None:
        """Wait until the mirror is what the table is."""
        self.wait(lambda: self.mirror() == self.source(*families), "the mirror to be equal", self.pull)
