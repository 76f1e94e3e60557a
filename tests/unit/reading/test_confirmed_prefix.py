from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.timestamps import Nanoseconds
from shared.reading.confirmed_prefix import ConfirmedPrefix, Place

START = Nanoseconds(1_000)
Prefix = ConfirmedPrefix[Nanoseconds, str]


def at(offset: int) -> Nanoseconds:
    return Nanoseconds(START + offset)


def test_records_that_are_confirmed_together_stand_in_one_place_and_count_each() -> None:
    prefix = Prefix(START)
    three = prefix.add(at(3), 1, records=3)
    one = prefix.add(at(4), 1)
    prefix.confirm([one])
    assert (prefix.watermark, prefix.outstanding, prefix.taken) == (START, 4, 4)
    prefix.confirm([three])
    assert (prefix.watermark, prefix.outstanding, prefix.taken) == (at(4), 0, 4)


def test_a_heartbeat_counts_only_when_all_data_before_it_are_confirmed() -> None:
    prefix = Prefix(START)
    place = prefix.add(at(1), 1)
    prefix.add(at(5), 0)
    assert (prefix.watermark, prefix.outstanding) == (START, 2)
    prefix.confirm([place])
    assert (prefix.watermark, prefix.outstanding) == (at(5), 0)


def test_a_heartbeat_on_a_quiet_partition_counts_at_once() -> None:
    prefix = Prefix(START)
    prefix.add(at(5), 0)
    assert prefix.watermark == at(5)


def test_a_record_that_is_published_in_parts_counts_once_all_of_them_are_confirmed() -> None:
    prefix = Prefix(START)
    place = prefix.add(at(1), 2)
    prefix.confirm([place])
    assert prefix.watermark == START
    prefix.confirm([place])
    assert prefix.watermark == at(1)


def test_confirming_once_too_often_and_repeating_earlier_records_move_nothing_back() -> None:
    prefix = Prefix(START)
    first = prefix.add(at(9), 1)
    prefix.confirm([first])
    repeated = prefix.add(at(2), 1)
    prefix.confirm([first])
    assert prefix.watermark == at(9)
    assert prefix.outstanding == 1
    prefix.confirm([repeated])
    assert prefix.watermark == at(9)


def test_the_token_is_that_of_the_last_confirmed_record_though_its_time_is_earlier() -> None:
    prefix = Prefix(START)
    assert (prefix.token, prefix.read_token) == (None, None)
    prefix.add(at(9), 0, token="a")
    place = prefix.add(at(2), 1, token="b")
    assert (prefix.token, prefix.read_token) == ("a", "b")
    prefix.confirm([place])
    assert (prefix.token, prefix.read_token, prefix.watermark) == ("b", "b", at(9))


def test_what_is_given_up_moves_nothing_nor_does_what_stands_beside_it_until_it_is_read_again() -> None:
    prefix = Prefix(START)
    noted, waiting, published = (prefix.add(at(n), 1, token=str(n)) for n in (1, 2, 3))
    prefix.give_up([waiting])
    assert (prefix.outstanding, prefix.read_token) == (3, None)  # the others are still to be confirmed
    prefix.confirm([published])
    prefix.confirm([noted])
    assert (prefix.watermark, prefix.token, prefix.outstanding) == (START, None, 0)
    again = [prefix.add(at(n), 1) for n in (1, 2)]
    prefix.confirm([waiting])
    prefix.confirm([again[1]])
    assert prefix.watermark == START
    prefix.confirm([again[0]])
    assert prefix.watermark == at(2)


ADDED = st.tuples(st.integers(-20, 50), st.integers(0, 2), st.integers(1, 3))
"""How much later than the record before it (earlier, where it is repeated), in how many parts, and how many records."""


@given(steps=st.lists(st.one_of(ADDED, st.integers(0, 40))))
def test_the_prefix_never_passes_what_is_unconfirmed_and_never_goes_back_in_whatever_order_it_is_confirmed(
    steps: list[tuple[int, int, int] | int],
) -> None:
    prefix = Prefix(START)
    line: list[tuple[Place[Nanoseconds, str], Nanoseconds, int]] = []
    left: list[int] = []
    now, before = START, START
    for step in steps:
        if isinstance(step, tuple):
            later, parts, records = step
            now = Nanoseconds(now + later)
            line.append((prefix.add(now, parts, records=records, token=str(len(line))), now, records))
            left.append(parts)
        elif step < len(line):
            prefix.confirm([line[step][0]])
            left[step] -= 1
        length = next((number for number, parts in enumerate(left) if parts > 0), len(line))
        assert prefix.watermark == max([START, *(time for _place, time, _records in line[:length])])
        assert prefix.token == (str(length - 1) if length else None)
        assert prefix.outstanding == sum(records for _place, _time, records in line[length:])
        assert prefix.watermark >= before
        before = prefix.watermark
