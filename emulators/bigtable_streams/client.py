"""A client of the front's control calls, for tests and the demo."""

from collections.abc import Sequence
from typing import Any, Final, Self, TypeVar

import grpc
import msgspec

from emulators.bigtable_streams import control_messages as messages

T = TypeVar("T", bound=msgspec.Struct)
_TIMEOUT_SECONDS: Final = 60.0


class FrontControl:
    """What can be asked of the front and not of Bigtable; see control_messages.py. Calls wait for their answer."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def split(self, table: str, at: bytes) -> bool:
        """Cut the partition that holds a key in two; False where one starts there already."""
        return self.ask(messages.Split(table, at), messages.Done).done

    def merge(self, table: str, at: bytes) -> bool:
        """Join the partition that starts at a key with the one before it; False where none starts."""
        return self.ask(messages.Merge(table, at), messages.Done).done

    def repartition(self, table: str, starts: Sequence[bytes]) -> bool:
        """Let the partitions start at these keys, all at once; False if they do already."""
        return self.ask(messages.Repartition(table, list(starts)), messages.Done).done

    def move(self, table: str, at: bytes) -> None:
        """Close the partition that holds a key, and serve a new one with the same range."""
        self.ask(messages.Move(table, at), messages.Done)

    def trim(self, table: str, before: int | None = None) -> None:
        """Forget what was committed before a time in microseconds, or everything."""
        self.ask(messages.Trim(table, before), messages.Done)

    def stall_watermark(self, table: str, *, stalled: bool = True) -> None:
        """Let the low watermark stand still, or go on."""
        self.ask(messages.StallWatermark(table, stalled), messages.Done)

    def cut_streams(self, table: str, after_messages: int = 0, status: str = "UNAVAILABLE") -> bool:
        """Break off the open streams of a table; False if there is none."""
        return self.ask(messages.CutStreams(table, after_messages, status), messages.Done).done

    def serve_streams(self, **settings: Any) -> None:
        """Set how streams are served: the fields of `ServeStreams`."""
        self.ask(messages.ServeStreams(**settings), messages.Done)

    def replicate(
        self,
        table: str,
        row_key: bytes,
        mutations: Sequence[Any],
        *,
        commit: int,
        cluster: str,
        tiebreaker: int | None = None,
    ) -> None:
        """Let a write that another cluster took arrive here; see `Replicate`."""
        serialized = [mutation.SerializeToString() for mutation in mutations]
        self.ask(messages.Replicate(table, row_key, serialized, commit, cluster, tiebreaker), messages.Done)

    def collect_garbage(self, table: str) -> messages.Collected:
        """Apply a table's garbage-collection rules once."""
        return self.ask(messages.CollectGarbage(table), messages.Collected)

    def add_cluster(self, instance: str, cluster: str) -> None:
        """Let an instance have another cluster, which profiles may route to."""
        self.ask(messages.AddCluster(instance, cluster), messages.Done)

    def add_fault(self, **fault: Any) -> int:
        """Let something go wrong: the fields of `AddFault`; return the number to remove it by."""
        return self.ask(messages.AddFault(**fault), messages.FaultAdded).fault

    def clear_faults(self, fault: int | None = None) -> None:
        """Remove one fault, or all."""
        self.ask(messages.ClearFaults(fault), messages.Done)

    def advance_clock(self, seconds: float) -> None:
        """Put the front's clock forward."""
        self.ask(messages.AdvanceClock(seconds), messages.Done)

    def describe(self, table: str) -> messages.Description:
        """Return what there is of a table's change stream."""
        return self.ask(messages.Describe(table), messages.Description)

    def ask(self, message: msgspec.Struct, answer: type[T]) -> T:
        """Make one control call; grpc.RpcError with what is wrong with it."""
        method = f"{messages.SERVICE}{type(message).__name__}"
        data = self._channel.unary_unary(method, None, None)(msgspec.json.encode(message), timeout=_TIMEOUT_SECONDS)
        return msgspec.json.decode(data, type=answer)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
