"""What is packed into which message, and when: a pure state machine that clocks itself.

One publish is outstanding per ordering key, and what arrives meanwhile is the next one: alone when quiet, full when
behind. A key may rest after a request, so that one that is busy makes fewer and fuller messages: what comes to it then
waits until it has rested, or until a message is full; what comes to any other goes at once. A request carries one
ordering key (Pub/Sub refuses a mix, its emulator does not), so a key's order is the order of its requests, and a
request that fails is sent again before anything later of its key.

Where messages have no ordering key, the same keys still say which changes make a message together. A request then takes
the messages of all keys that are due.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds

REQUEST_BYTES: Final = 9_000_000
"""No request, and so no message, is larger. Pub/Sub's limit is 10 MB for each."""
REQUEST_MESSAGES: Final = 1_000
"""Pub/Sub's limit."""
_UNTOLD: Final = Nanoseconds(0)
_REQUEST_OVERHEAD: Final = 2_048  # the topic's name and the request's own framing
_OVERSIZED_OVERHEAD: Final = 2_048  # the structure, its receipt, the future and the place of who waits for it
_MESSAGE_OVERHEAD: Final = 1_024  # attributes but for source and table (twice), the document's frame, framing


@dataclass(frozen=True, slots=True, kw_only=True)
class PackerLimits:
    """How full a message and a request may become, and how many requests may be under way at once."""

    changes_per_message: int = 500
    bytes_per_message: int = 1_000_000
    messages_per_request: int = REQUEST_MESSAGES
    bytes_per_request: int = REQUEST_BYTES
    requests: int = 200

    def __post_init__(self) -> None:
        if min(self.changes_per_message, self.bytes_per_message, self.messages_per_request, self.requests) < 1:
            raise ValueError("a limit below 1 lets nothing pass")
        if self.messages_per_request > REQUEST_MESSAGES or self.bytes_per_request > REQUEST_BYTES:
            raise ValueError(f"a request takes {REQUEST_MESSAGES} messages and {REQUEST_BYTES} bytes at most")


class Receipt(msgspec.Struct, eq=False):
    """What one caller waits for: how many of its changes (and announcements) are not confirmed yet."""

    waiting: int = 0
    size: int = 0
    taken_at: Nanoseconds = _UNTOLD


@dataclass(frozen=True, slots=True)
class Message:
    """A change batch to be published."""

    header: Header
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class PackedRequest:
    """One publish: the messages of each of its keys, in order; of one key, unless messages have no ordering key."""

    of_keys: Mapping[str, Sequence[Message]]
    taken_at: Nanoseconds
    """Of its oldest change."""

    @property
    def ordering_key(self) -> str:
        """Return its first key."""
        return next(iter(self.of_keys))

    @property
    def messages(self) -> Sequence[Message]:
        """Return all its messages."""
        return [message for messages in self.of_keys.values() for message in messages]


@dataclass(frozen=True, slots=True)
class Oversized:
    """What names a change that fits into no message; it counts in its receipt until `Packer.settle` is called with it.

    The change's values are not among it: any number of such changes may wait for the dead-letter topic.
    """

    header: Header
    ordering_key: str
    key: str
    sequence: str
    commit_timestamp: str
    size: int
    """Bytes of the whole change, without its old values."""
    receipt: Receipt

    @property
    def outstanding_bytes(self) -> int:
        """Return how much memory waiting for the dead-letter topic takes (never less)."""
        return _OVERSIZED_OVERHEAD + len(self.key.encode())


class _Entry(msgspec.Struct, eq=False):
    header: Header
    header_size: int
    change: Change | None  # None announces the header
    size: int
    receipt: Receipt


@dataclass(slots=True)
class _Lane:
    """One ordering key: what waits, and what is under way."""

    waiting: deque[_Entry] = field(default_factory=deque)
    under_way: list[_Entry] = field(default_factory=list)
    waiting_bytes: int = 0
    under_way_bytes: int = 0
    paced: bool = False
    due: bool = False


class Packer:
    """Collects changes per ordering key and cuts them into requests."""

    def __init__(self, limits: PackerLimits | None = None, *, paced: bool = False, ordered: bool = True) -> None:
        """With ``paced`` a key waits from each request that is cut for it until `interval_ended` is called.

        ``ordered``: whether messages have ordering keys.
        """
        self._ordered = ordered
        self._limits = limits or PackerLimits()
        self._paced = paced
        self._lanes: dict[str, _Lane] = {}
        self._due: deque[str] = deque()  # keys with something waiting and nothing under way, longest waiting first
        self._under_way = 0
        self._open: set[Receipt] = set()
        self._measured: Header | None = None
        self._header_size = 0
        """Of the header that was measured last."""
        self.outstanding_bytes = 0
        """Bytes added and not confirmed yet."""
        self.old_values_omitted = 0
        """Changes whose old values were dropped, because no message can hold the change with them."""

    def add(
        self,
        header: Header,
        changes: Sequence[tuple[str, Change]],
        announce_under: str = "",
        taken_at: Nanoseconds = _UNTOLD,
    ) -> tuple[Receipt, Sequence[Oversized]]:
        """Take changes, each with its ordering key; none announces the header under the key ``announce_under``.

        A change that fits into no message loses its old values. One that is too large without them is named in the
        result: the caller keeps a dead letter of it, and then settles it.
        """
        if header is not self._measured:
            self._measured = header
            self._header_size = len(msgspec.json.encode(header)) + 2 * len((header.source + header.table).encode())
        header_size = self._header_size
        room = self._limits.bytes_per_request - _REQUEST_OVERHEAD - _MESSAGE_OVERHEAD - header_size
        if room < 0:
            raise MisconfiguredError(
                "column-list-too-large",
                f"table {header.table}: its column list alone has {header_size} bytes, more than a message holds",
            )
        receipt = Receipt(waiting=max(1, len(changes)), taken_at=taken_at)
        oversized: list[Oversized] = []
        if not changes:
            self._enqueue(announce_under, [_Entry(header, header_size, None, 0, receipt)], 0)
        of_keys: defaultdict[str, list[Change]] = defaultdict(list)
        for key, change in changes:
            of_keys[key].append(change)
        for key, some in of_keys.items():
            entries, of_entries = [], 0
            room_of_key = room - len(key.encode())
            for change in some:
                size = change.size()
                if size > room_of_key and change.old is not None:
                    change = change.without_old_values()  # noqa: PLW2901
                    size = change.size()
                    self.old_values_omitted += size <= room_of_key
                if size > room_of_key:
                    one = Oversized(header, key, change.key, change.sequence, change.commit_timestamp, size, receipt)
                    oversized.append(one)
                    self.outstanding_bytes += one.outstanding_bytes
                else:
                    of_entries += size
                    entries.append(_Entry(header, header_size, change, size, receipt))
            if entries:
                receipt.size += of_entries
                self._enqueue(key, entries, of_entries)
        self._open.add(receipt)
        self.outstanding_bytes += receipt.size
        return receipt, oversized

    def bytes_of(self, key: str) -> int:
        """Return how many bytes of a key are added and not confirmed yet."""
        lane = self._lanes.get(key)
        return 0 if lane is None else lane.waiting_bytes + lane.under_way_bytes

    def requests(self) -> Iterator[PackedRequest]:
        """Cut requests of all keys that may publish now; each is then under way until it is confirmed."""
        while self._due and self._under_way < self._limits.requests:
            yield self._cut()

    def confirm(self, *keys: str) -> Sequence[Receipt]:
        """Note that the request of the keys is confirmed; return the receipts that wait for nothing more."""
        self._under_way -= 1
        done: list[Receipt] = []
        size = 0
        for key in keys:
            lane = self._lanes[key]
            confirmed, lane.under_way, lane.under_way_bytes = lane.under_way, [], 0
            self._settle(key, lane)
            for entry in confirmed:
                size += entry.size
                receipt = entry.receipt
                receipt.waiting -= 1
                if receipt.waiting == 0:
                    self._close(receipt, done)
        self.outstanding_bytes -= size
        return done

    def interval_ended(self, ordering_key: str) -> None:
        """Note that a key has rested since its last request."""
        lane = self._lanes.get(ordering_key)
        if lane is not None:
            lane.paced = False
            if not lane.under_way:
                self._settle(ordering_key, lane)

    def hurry(self) -> None:
        """Let no key rest from now on."""
        self._paced = False
        for key in list(self._lanes):
            self.interval_ended(key)

    def settle(self, oversized: Oversized) -> Sequence[Receipt]:
        """Note that the dead letter of a change is confirmed; return its receipt if that waits for nothing more."""
        done: list[Receipt] = []
        receipt = oversized.receipt
        receipt.waiting -= 1
        self.outstanding_bytes -= oversized.outstanding_bytes
        if receipt.waiting == 0:
            self._close(receipt, done)
        return done

    def abandon(self) -> Sequence[Receipt]:
        """Forget everything; return the receipts that will never be confirmed."""
        receipts = list(self._open)
        self._lanes.clear()
        self._due.clear()
        self._open.clear()
        self._under_way = 0
        self.outstanding_bytes = 0
        return receipts

    @property
    def idle(self) -> bool:
        """Return whether every receipt is done."""
        return not self._open

    def _enqueue(self, key: str, entries: Sequence[_Entry], size: int) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.waiting += entries
        lane.waiting_bytes += size
        if not lane.under_way:
            self._settle(key, lane)

    def _settle(self, key: str, lane: _Lane) -> None:
        """Let a key of which nothing is under way publish what waits, unless it rests and that is less than a message.

        A key of which nothing waits is forgotten: tables come and go, and a quiet one costs nothing.
        """
        if not lane.waiting:
            if not lane.paced:
                del self._lanes[key]
        elif not lane.due and (not lane.paced or self._fills_a_message(lane)):
            lane.due = True
            self._due.append(key)

    def _fills_a_message(self, lane: _Lane) -> bool:
        limits = self._limits
        return len(lane.waiting) >= limits.changes_per_message or lane.waiting_bytes >= limits.bytes_per_message

    def _cut(self) -> PackedRequest:
        of_keys: dict[str, Sequence[Message]] = {}
        taken_at: list[Nanoseconds] = []
        room = self._limits.bytes_per_request - _REQUEST_OVERHEAD
        most = self._limits.messages_per_request
        while self._due and most > 0:
            key = self._due[0]
            lane = self._lanes[key]
            first = lane.waiting[0]
            messages, room = self._cut_messages(key, lane, room, most)
            if not messages:  # another request's
                break
            self._due.popleft()
            lane.due, lane.paced = False, self._paced
            of_keys[key] = messages
            taken_at.append(first.receipt.taken_at)
            most -= len(messages)
            if self._ordered:
                break
        self._under_way += 1
        return PackedRequest(of_keys, min(taken_at))

    def _cut_messages(self, key: str, lane: _Lane, room: int, most: int) -> tuple[Sequence[Message], int]:
        """Take so many messages of a key while there is room; return them and the room that is left."""
        messages: list[Message] = []
        overhead = _MESSAGE_OVERHEAD + len(key.encode())
        while lane.waiting and len(messages) < most:
            cut, size = self._cut_message(lane.waiting, room, overhead)
            if not cut:
                break
            room -= size
            lane.under_way += cut
            of_changes = size - overhead - cut[0].header_size
            lane.waiting_bytes -= of_changes
            lane.under_way_bytes += of_changes
            messages.append(Message(cut[0].header, [entry.change for entry in cut if entry.change is not None]))
        return messages, room

    def _cut_message(self, waiting: deque[_Entry], room: int, overhead: int) -> tuple[list[_Entry], int]:
        """Take one message's entries from the front: one header, at most N and S, and no more than there is room."""
        first = waiting[0]
        size = overhead + first.header_size + first.size
        if size > room:
            return [], 0
        cut = [waiting.popleft()]
        if first.change is None:
            return cut, size
        most = min(room, max(self._limits.bytes_per_message, size))
        header, left = first.header, self._limits.changes_per_message - 1
        while waiting and left > 0:
            entry = waiting[0]
            if entry.change is None or size + entry.size > most:
                break
            if entry.header is not header and entry.header != header:
                break
            size += entry.size
            left -= 1
            cut.append(waiting.popleft())
        return cut, size

    def _close(self, receipt: Receipt, done: list[Receipt]) -> None:
        self._open.discard(receipt)
        done.append(receipt)
