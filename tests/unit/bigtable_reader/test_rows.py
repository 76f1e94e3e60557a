"""Rows that the service refuses to read are told from every other call that somebody has to mend."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.adapters.errors import bigtable_errors
from services.bigtable_reader.adapters.row_chunks import READ_ROWS
from services.bigtable_reader.adapters.rows import BigtableRows
from services.bigtable_reader.ports import ReadRefusedError
from shared.contracts.errors import MisconfiguredError


class Refusing:
    """A connection on which every call fails with one status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    async def stream(self, *_call: object, **_options: object) -> AsyncGenerator[Any, None]:
        """Fail."""
        yield READ_ROWS.response()
        with bigtable_errors("ReadRows"):
            raise AioRpcError(self._code, Metadata(), Metadata(), "the row is too large", "")


@pytest.mark.parametrize(
    ("code", "is_of_the_rows"),
    [(grpc.StatusCode.FAILED_PRECONDITION, True), (grpc.StatusCode.PERMISSION_DENIED, False)],
)
def test_only_a_precondition_may_be_of_the_rows_that_were_asked_for(
    code: grpc.StatusCode, is_of_the_rows: bool
) -> None:
    rows = BigtableRows(cast("Channels", Refusing(code)), Table("projects/p/instances/i", "t"))
    with pytest.raises(MisconfiguredError, match="the row is too large") as raised:
        asyncio.run(rows.read([b"a"]))
    assert isinstance(raised.value, ReadRefusedError) is is_of_the_rows
