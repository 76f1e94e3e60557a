"""The demo's changes on the Spanner emulator: it takes them all, and ends with what the model says."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.cloud.spanner_v1 import (
    CommitRequest,
    ExecuteSqlRequest,
    SpannerClient,
    TransactionOptions,
    TransactionSelector,
)
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport

from deploy.local.demo.workloads import workloads
from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase, SpannerInstance
from deploy.local.proof.comparison import compare, table_shapes
from shared.pubsub.channels import open_channel

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("number", [0, 1], ids=["flights", "weather"])
def test_spanner_takes_every_change_and_ends_as_the_model(
    database: Callable[..., SpannerDatabase], number: int
) -> None:
    workload = workloads(150, 1500, before=50)[number]
    demo = workload.demo
    source = database(*demo.statements, postgresql=demo.postgresql)

    for transaction in [*workload.before(), *workload.load(), *workload.changes(400)]:
        source.commit(transaction.writes)
    source.alter(demo.added.statement)
    workload.column_added()
    for transaction in workload.changes(600):
        source.commit(transaction.writes)

    shapes = table_shapes(source)
    assert {table: tuple(shapes[table].key) for table in demo.keys} == demo.keys
    for table in demo.keys:
        modelled = [as_bigquery_has_it(row) for row in workload.tables[table].values()]
        comparison = compare(shapes[table], source.query(f"SELECT * FROM {table}"), modelled)
        assert comparison.equal, comparison.named
        assert comparison.rows == len(modelled) > 0


def test_a_schema_change_waits_for_an_open_transaction(new_processes: Processes) -> None:
    with (
        # in Spanner a schema change aborts no transaction; the emulator throws dice for it, except with this flag
        emulators.spanner_emulator(new_processes, abort_current_transaction_probability="0") as address,
        open_channel(address) as channel,
    ):
        instance = SpannerInstance.create(address, "project", "instance")
        source = instance.create_database(["CREATE TABLE T (k INT64) PRIMARY KEY (k)"])
        client = SpannerClient(transport=SpannerGrpcTransport(channel=channel))
        session = client.create_session(database=source.path).name
        begin = TransactionSelector(begin=TransactionOptions(read_write=TransactionOptions.ReadWrite()))
        insert = ExecuteSqlRequest(session=session, sql="INSERT INTO T (k) VALUES (1)", transaction=begin, seqno=1)
        transaction = client.execute_sql(insert).metadata.transaction.id
        commit = CommitRequest(session=session, transaction_id=transaction)
        ending = threading.Timer(1, lambda: client.commit(commit))  # the emulator refuses schema changes until then
        ending.start()

        source.alter("ALTER TABLE T ADD COLUMN v INT64")

        ending.join()
        assert source.query("SELECT k, v FROM T") == [{"k": 1, "v": None}]
        instance.close()


def as_bigquery_has_it(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with lists as arrays."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}
