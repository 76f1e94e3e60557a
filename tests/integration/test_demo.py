"""A schema change of the demo on the Spanner emulator."""

import threading

import pytest
from google.cloud.spanner_v1 import (
    CommitRequest,
    ExecuteSqlRequest,
    SpannerClient,
    TransactionOptions,
    TransactionSelector,
)
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerInstance
from shared.pubsub.channels import open_channel

pytestmark = pytest.mark.integration


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
