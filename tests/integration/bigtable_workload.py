"""Random writers of a Bigtable table: every call that changes rows, on few rows, so that they meet."""

import asyncio
import random
import struct
from collections import Counter
from typing import Any, Final

import grpc
from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types as data_types

from tests.integration.bigtable_front import (
    add_to_cell,
    delete_column,
    delete_family,
    delete_row,
    merge_to_cell,
    set_cell,
)

FAMILIES: Final = ("f", "g", "n")
SUMS: Final = "sums"
_DATA: Final = "/google.bigtable.v2.Bigtable/"
_TABLES: Final = "/google.bigtable.admin.v2.BigtableTableAdmin/"
_ROWS: Final = 40
_TIMES: Final = (-1, 0, 1_000, 2_000, 3_000, 4_000)
_EXPECTED: Final = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class Writer:
    """One writer; what it does follows from its seed."""

    def __init__(self, channel: grpc.aio.Channel, table: str, seed: int) -> None:
        self._channel = channel
        self._table = table
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def run(self, calls: int) -> None:
        """Make so many calls, one after the other; some are given up before they are answered."""
        while self.counts.total() < calls:
            await self._any_call()

    async def _any_call(self) -> None:
        call = self._random.choices(
            [self._mutate_row, self._mutate_rows, self._check_and_mutate, self._read_modify_write, self._drop],
            [50, 20, 15, 15, 1],
        )[0]
        method, request, streaming = call()
        make: Any = self._channel.unary_stream if streaming else self._channel.unary_unary
        calling = make(method, None, None)(request.SerializeToString(), timeout=self._deadline())
        try:
            if streaming:
                async for each in calling:
                    for entry in data_types.MutateRowsResponse.pb().FromString(each).entries:
                        assert entry.status.code == 0, entry
            else:
                await calling
        except grpc.aio.AioRpcError as error:
            if error.code() not in _EXPECTED:
                raise
        self.counts[method.rsplit("/", 1)[-1]] += 1

    def _deadline(self) -> float:
        return self._random.uniform(0.001, 0.01) if self._random.random() < 0.03 else 30.0

    def _key(self) -> bytes:
        return b"r%02d" % self._random.randrange(_ROWS)

    def _mutations(self, most: int = 4) -> list[Any]:
        return [self._mutation() for _ in range(self._random.randint(1, most))]

    def _mutation(self) -> Any:
        pick, family, qualifier = self._random, self._random.choice("fg"), self._random.choice([b"a", b"b"])
        match pick.choices(["set", "number", "add", "merge", "column", "family", "row"], [50, 5, 10, 5, 15, 8, 7])[0]:
            case "set":
                return set_cell(family, qualifier, pick.randbytes(pick.randrange(200)), pick.choice(_TIMES))
            case "number":
                return set_cell("n", qualifier, struct.pack(">q", pick.randrange(1000)), pick.choice(_TIMES))
            case "add":
                return add_to_cell(SUMS, qualifier, pick.choice(_TIMES[1:]), pick.randrange(-9, 9))
            case "merge":
                return merge_to_cell(SUMS, qualifier, pick.choice(_TIMES[1:]), pick.randrange(-9, 9))
            case "column":
                start, end = sorted(pick.sample(_TIMES[1:], 2))
                family = pick.choice([*FAMILIES, SUMS])
                return delete_column(family, qualifier, *pick.choice([(0, 0), (start, 0), (0, end), (start, end)]))
            case "family":
                return delete_family(pick.choice([*FAMILIES, SUMS]))
            case _:
                return delete_row()

    def _mutate_row(self) -> tuple[str, Any, bool]:
        request = data_types.MutateRowRequest.pb()
        return (
            f"{_DATA}MutateRow",
            request(table_name=self._table, row_key=self._key(), mutations=self._mutations()),
            False,
        )

    def _mutate_rows(self) -> tuple[str, Any, bool]:
        request = data_types.MutateRowsRequest.pb()(table_name=self._table)
        for _ in range(self._random.randint(1, 8)):
            request.entries.add(row_key=self._key(), mutations=self._mutations(2))
        return f"{_DATA}MutateRows", request, True

    def _check_and_mutate(self) -> tuple[str, Any, bool]:
        request = data_types.CheckAndMutateRowRequest.pb()(table_name=self._table, row_key=self._key())
        request.predicate_filter.family_name_regex_filter = self._random.choice(FAMILIES)
        request.true_mutations.extend(self._mutations(2))
        request.false_mutations.extend(self._mutations(2))
        return f"{_DATA}CheckAndMutateRow", request, False

    def _read_modify_write(self) -> tuple[str, Any, bool]:
        request = data_types.ReadModifyWriteRowRequest.pb()(table_name=self._table, row_key=self._key())
        for _ in range(self._random.randint(1, 3)):
            qualifier = self._random.choice([b"a", b"b"])
            if self._random.random() < 0.5:
                request.rules.add(family_name="n", column_qualifier=qualifier, increment_amount=1)
            else:
                request.rules.add(family_name="f", column_qualifier=qualifier, append_value=b"+")
        return f"{_DATA}ReadModifyWriteRow", request, False

    def _drop(self) -> tuple[str, Any, bool]:
        request = admin_types.DropRowRangeRequest.pb()(name=self._table)
        if self._random.random() < 0.2:
            request.delete_all_data_from_table = True
        else:
            request.row_key_prefix = b"r%d" % self._random.randrange(_ROWS // 10)
        return f"{_TABLES}DropRowRange", request, False


class Writers:
    """Several writers at the same time."""

    def __init__(self, channel: grpc.aio.Channel, table: str, seed: int, writers: int, calls: int) -> None:
        """``calls``: of each writer."""
        self._calls = calls
        self._writers = [Writer(channel, table, seed * 1_000 + number) for number in range(writers)]

    @property
    def share_done(self) -> float:
        """Return how much of all calls is done, from 0 to 1."""
        return sum(writer.counts.total() for writer in self._writers) / (self._calls * len(self._writers))

    async def run(self) -> None:
        """Make all calls."""
        await asyncio.gather(*(writer.run(self._calls) for writer in self._writers))


async def settle(channel: grpc.aio.Channel, table: str) -> None:
    """Return when no call is being applied: DropRowRange takes the whole table, so it waits for all of them."""
    request = admin_types.DropRowRangeRequest.pb()(name=table, row_key_prefix=b"no such row")
    drop: Any = channel.unary_unary(f"{_TABLES}DropRowRange", None, None)
    await drop(request.SerializeToString())
