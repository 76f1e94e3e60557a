"""The table admin calls that touch what the emulator does not keep: change streams, garbage-collection rules.

Rules are kept back from the emulator, whose own collection would remove cells without a record; see garbage.py.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from google.longrunning import operations_pb2
from google.protobuf import any_pb2, field_mask_pb2

from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.profiles import Profiles
from emulators.bigtable_streams.protocol import (
    TABLES,
    ColumnFamily,
    CreateTableRequest,
    DeleteTableRequest,
    DropRowRangeRequest,
    GetTableRequest,
    ListTablesResponse,
    ModifyColumnFamiliesRequest,
    UpdateTableMetadata,
    UpdateTableRequest,
)
from emulators.bigtable_streams.protocol import Table as TableMessage
from emulators.bigtable_streams.refusals import invalid
from emulators.bigtable_streams.rows import delete_family, read_prefix
from emulators.bigtable_streams.tables import Table, Tables, retention_of

_CONFIG: Final = "change_stream_config"
_VIEW: Final = TableMessage.View


class TableAdmin:
    """Serves those calls."""

    def __init__(self, emulator: Emulator, tables: Tables, profiles: Profiles, now: Callable[[], int]) -> None:
        self._emulator = emulator
        self._tables = tables
        self._profiles = profiles
        self._now = now

    async def create_table(self, data: bytes) -> bytes:
        """Serve CreateTable."""
        request = CreateTableRequest.FromString(data)
        wanted = request.table
        retention = retention_of(wanted.change_stream_config) if wanted.HasField(_CONFIG) else 0
        families = {name: _copied(family) for name, family in wanted.column_families.items()}
        splits = [split.key for split in request.initial_splits]
        wanted.ClearField(_CONFIG)
        _without_rules(wanted.column_families.values())
        answer = await self._emulator.unary(f"{TABLES}CreateTable", request.SerializeToString())
        table = self._tables.add(f"{request.parent}/tables/{request.table_id}", families, splits, retention)
        return _completed(table, answer)

    async def get_table(self, data: bytes) -> bytes:
        """Serve GetTable."""
        request = GetTableRequest.FromString(data)
        answer = await self._emulator.unary(f"{TABLES}GetTable", data)
        if request.view in (_VIEW.Value("NAME_ONLY"), _VIEW.Value("REPLICATION_VIEW")):
            return answer
        return _completed(await self._tables.get(request.name), answer)

    async def list_tables(self, data: bytes) -> bytes:
        """Serve ListTables."""
        answer = ListTablesResponse.FromString(await self._emulator.unary(f"{TABLES}ListTables", data))
        for message in answer.tables:
            if message.column_families and (table := self._tables.known(message.name)) is not None:
                table.complete(message)
        return bytes(answer.SerializeToString())

    async def update_table(self, data: bytes) -> bytes:
        """Serve UpdateTable: the change stream here, anything else by the emulator."""
        request = UpdateTableRequest.FromString(data)
        paths = [str(path) for path in request.update_mask.paths]
        ours = [path for path in paths if path == _CONFIG or path.startswith(f"{_CONFIG}.")]
        if unknown := set(ours) - {_CONFIG, f"{_CONFIG}.retention_period"}:
            raise invalid(f"Unknown field in update_mask: {', '.join(sorted(unknown))}")
        table = await self._tables.get(request.table.name)
        config = request.table.change_stream_config
        retention = retention_of(config) if config.HasField("retention_period") else 0
        others = [path for path in paths if path not in ours]
        answer = operations_pb2.Operation()
        if others or not paths:
            request.update_mask.CopyFrom(field_mask_pb2.FieldMask(paths=others))
            request.table.ClearField(_CONFIG)
            answer.ParseFromString(await self._emulator.unary(f"{TABLES}UpdateTable", request.SerializeToString()))
        if ours:
            async with table.locks.table():
                table.set_retention(retention)
        if not answer.name:
            answer.name = f"operations/{table.name}/operations/{self._now()}"
            answer.done = True
            answer.metadata.Pack(UpdateTableMetadata(name=table.name))
        if answer.done and not answer.HasField("error"):
            message = await self._described(table)
            packed = any_pb2.Any()
            packed.Pack(message)
            answer.response.CopyFrom(packed)
        return bytes(answer.SerializeToString())

    async def delete_table(self, data: bytes) -> bytes:
        """Serve DeleteTable."""
        name = DeleteTableRequest.FromString(data).name
        answer = await self._emulator.unary(f"{TABLES}DeleteTable", data)
        self._tables.remove(name)
        return answer

    async def modify_column_families(self, data: bytes) -> bytes:
        """Serve ModifyColumnFamilies; what becomes of the data of a dropped family is in no stream."""
        request = ModifyColumnFamiliesRequest.FromString(data)
        table = await self._tables.get(request.name)
        families = dict(table.families)
        for change in request.modifications:
            match change.WhichOneof("mod"):
                case "create":
                    families[change.id] = _copied(change.create)
                case "update" if change.id in families:
                    families[change.id] = _updated(families[change.id], change)
                case "drop":
                    families.pop(change.id, None)
                case _:  # the emulator refuses it
                    pass
        for change in request.modifications:
            if change.WhichOneof("mod") in ("create", "update"):
                _without_rules([getattr(change, change.WhichOneof("mod"))])
        async with table.locks.table():
            answer = await self._emulator.unary(f"{TABLES}ModifyColumnFamilies", request.SerializeToString())
            table.families = families
        return _completed(table, answer)

    async def drop_row_range(self, data: bytes) -> bytes:
        """Serve DropRowRange: recorded row by row, as one DeleteFromFamily for each family in which a row has data."""
        request = DropRowRangeRequest.FromString(data)
        table = await self._tables.get(request.name)
        everything = request.delete_all_data_from_table
        if not everything and not request.row_key_prefix:
            raise invalid("row_key_prefix must be non-empty")
        cluster = self._profiles.writer(table.name, "")
        async with table.locks.table():
            prefix = b"" if everything else request.row_key_prefix
            rows = await read_prefix(self._emulator, table.name, prefix) if table.log is not None else {}
            answer = await self._emulator.unary(f"{TABLES}DropRowRange", data)
            for row_key, row in rows.items():
                table.record(row_key, [delete_family(each) for each in row.families()], cluster.id, cluster.tiebreaker)
        return answer

    async def _described(self, table: Table) -> Any:
        request = GetTableRequest(name=table.name)
        message = TableMessage.FromString(await self._emulator.unary(f"{TABLES}GetTable", request.SerializeToString()))
        table.complete(message)
        return message


def _completed(table: Table, answer: bytes) -> bytes:
    message = TableMessage.FromString(answer)
    table.complete(message)
    return bytes(message.SerializeToString())


def _updated(family: Any, change: Any) -> Any:
    kept = _copied(family)
    if not change.update_mask.paths or "gc_rule" in change.update_mask.paths:
        kept.ClearField("gc_rule")
        if change.update.HasField("gc_rule"):
            kept.gc_rule.CopyFrom(change.update.gc_rule)
    return kept


def _copied(family: Any) -> Any:
    copy = ColumnFamily()
    copy.CopyFrom(family)
    return copy


def _without_rules(families: Iterable[Any]) -> None:
    for family in families:
        family.ClearField("gc_rule")
