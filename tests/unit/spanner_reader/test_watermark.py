from hypothesis import given
from hypothesis import strategies as st

from services.spanner_reader.core.stream.watermark import SpannerConfirmedPrefix
from shared.contracts.timestamps import Nanoseconds, parse_timestamp

START = Nanoseconds(1_000)


def at(offset: int) -> Nanoseconds:
    return Nanoseconds(START + offset)


def test_records_that_are_confirmed_together_stand_in_one_place_and_count_each() -> None:
    prefix = SpannerConfirmedPrefix(START)
    three = prefix.add(at(3), records=3)
    one = prefix.add(at(4))
    prefix.confirm(one)
    assert (prefix.watermark, prefix.outstanding) == (START, 4)
    prefix.confirm(three)
    assert (prefix.watermark, prefix.outstanding) == (at(4), 0)


def test_a_heartbeat_counts_only_when_all_data_before_it_are_confirmed() -> None:
    heartbeat = parse_timestamp("2022-09-27T12:35:00.312486Z")
    prefix = SpannerConfirmedPrefix(START)
    place = prefix.add(at(1))
    prefix.add_confirmed(heartbeat)
    assert prefix.watermark == START
    prefix.confirm(place)
    assert prefix.watermark == heartbeat


def test_a_heartbeat_on_a_quiet_partition_counts_at_once() -> None:
    prefix = SpannerConfirmedPrefix(START)
    prefix.add_confirmed(at(5))
    assert prefix.watermark == at(5)


def test_confirming_twice_and_repeating_earlier_records_move_nothing_back() -> None:
    prefix = SpannerConfirmedPrefix(START)
    first = prefix.add(at(9))
    prefix.confirm(first)
    repeated = prefix.add(at(2))
    prefix.confirm(first)
    assert prefix.watermark == at(9)
    assert prefix.outstanding == 1
    prefix.confirm(repeated)
    assert prefix.watermark == at(9)


def test_what_is_given_up_moves_nothing_nor_does_what_stands_beside_it_until_it_is_read_again() -> None:
    prefix = SpannerConfirmedPrefix(START)
    noted, waiting, published = (prefix.add(at(n)) for n in (1, 2, 3))
    prefix.give_up([waiting])
    assert prefix.outstanding == 3  # the others are still to be confirmed
    prefix.confirm(published)
    prefix.confirm(noted)
    assert (prefix.watermark, prefix.outstanding) == (START, 0)
    again = [prefix.add(at(n)) for n in (1, 2)]
    prefix.confirm(waiting)
    prefix.confirm(again[1])
    assert prefix.watermark == START
    prefix.confirm(again[0])
    assert prefix.watermark == at(2)


@given(
    steps=st.lists(
        st.one_of(st.tuples(st.just("add"), st.integers(0, 50)), st.tuples(st.just("confirm"), st.integers(0, 40)))
    ),
)
def test_the_watermark_is_the_time_of_the_longest_confirmed_prefix_in_whatever_order_it_is_confirmed(
    steps: list[tuple[str, int]],
) -> None:
    prefix = SpannerConfirmedPrefix(START)
    times: list[Nanoseconds] = []
    confirmed: set[int] = set()
    now, before = START, START
    for step, number in steps:
        if step == "add":
            now = Nanoseconds(now + number)  # records of a partition come in commit order
            assert prefix.add(now) == len(times)
            times.append(now)
        elif number < len(times):
            prefix.confirm(number)
            confirmed.add(number)
        length = next((n for n in range(len(times)) if n not in confirmed), len(times))
        assert prefix.watermark == (times[length - 1] if length else START)
        assert prefix.outstanding == len(times) - length
        assert prefix.watermark >= before
        before = prefix.watermark
