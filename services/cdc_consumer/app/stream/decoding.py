"""A task's messages decoded, group by group, each when the one before it has been handled.

Suspected messages that hold poison come behind those that hold none, and are judged together: group by group, the
dead-letter limit would trip only when much poison that came often is dead-lettered. A group that exhausts the memory is
halved until it is one message, and that comes last of all.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from services.cdc_consumer.app.stream.suspected_poison import MessageGroup, Watch
from services.cdc_consumer.core.stream.columns import Decoded
from services.cdc_consumer.core.stream.poison import Poison
from services.cdc_consumer.core.stream.task_totals import TaskTotals
from services.cdc_consumer.ports import PoisonLimit
from shared.contracts.reasons import Reason

_DETAIL = "delivered {} times and never settled, and not because it was deferred: it may end the process"


def decoded_groups(
    groups: Iterable[MessageGroup], decode: Callable[[pa.Table], Decoded], watch: Watch, dead_letter_limit: PoisonLimit
) -> Iterator[tuple[MessageGroup, Decoded]]:
    """Yield all groups in the order in which they are to be handled, smaller ones where the memory asks for it.

    What ``decode`` raises is passed on: at once, or MemoryError when all others have been yielded. MisconfiguredError
    also where the suspected messages trip the dead-letter limit.
    """
    todo = deque(groups)
    poisonous: list[tuple[MessageGroup, Decoded]] = []
    large: list[MessageGroup] = []
    while todo:
        group = todo.popleft()
        decoded = _unless_exhausted(group, decode, watch)
        if decoded is None and len(group.messages) > 1:
            middle = len(group.messages) // 2
            halves = (group.messages.slice(middle), group.messages.slice(0, middle))
            todo.extendleft(replace(group, messages=each) for each in halves)
        elif decoded is None:
            large.append(replace(group, suspected=True))
        elif group.suspected and decoded.poison:
            bad = {one.message for one in decoded.poison}
            if len(bad) == len(group.messages):
                poisonous.append((group, decoded))
            else:
                todo.extendleft(_apart(group, bad))
        else:
            yield group, decoded
    seen = (TaskTotals.of(range(len(group.messages)), decoded, decoded.poison) for group, decoded in poisonous)
    dead_letter_limit.judge(sum(seen, TaskTotals()))
    yield from poisonous
    yield from _one_more_time(large, decode, watch)


def _apart(group: MessageGroup, bad: Collection[int]) -> Iterator[MessageGroup]:
    """Yield those messages of a group, and then the others."""
    of_them = pa.array([message in bad for message in range(len(group.messages))])
    for those in (of_them, pc.invert(of_them)):
        yield replace(group, messages=group.messages.filter(those))


def _unless_exhausted(group: MessageGroup, decode: Callable[[pa.Table], Decoded], watch: Watch) -> Decoded | None:
    if group.fatal:
        return _undecoded(group.messages)
    with watch.decoding(group):
        try:
            return decode(group.messages)
        except MemoryError:
            structlog.get_logger().warning("memory_exhausted", messages=len(group.messages))
            return None


def _one_more_time(
    groups: Iterable[MessageGroup], decode: Callable[[pa.Table], Decoded], watch: Watch
) -> Iterator[tuple[MessageGroup, Decoded]]:
    """Yield the messages that exhausted the memory, now that the others are done; a second time counts as a crash."""
    exhausted: MemoryError | None = None
    for group in groups:
        try:
            with watch.decoding(group):
                decoded = decode(group.messages)
        except MemoryError as error:
            exhausted = error
        else:
            yield group, decoded
    if exhausted is not None:
        raise exhausted


def _undecoded(messages: pa.Table) -> Decoded:
    """Return messages as poison without decoding them."""
    poison = [
        Poison(message, None, Reason.RETRIES_EXHAUSTED, _DETAIL.format(deliveries or 1))
        for message, deliveries in enumerate(messages["delivery_attempt"].to_pylist())
    ]
    return Decoded((), poison, {})
