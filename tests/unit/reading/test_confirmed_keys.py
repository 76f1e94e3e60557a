"""A key counts as confirmed with all keys before it, whatever the order of confirmations."""

from hypothesis import given
from hypothesis import strategies as st

from shared.reading.confirmed_keys import ConfirmedKeys


@given(st.permutations(range(8)))
def test_a_key_counts_as_confirmed_with_all_before_it(order: list[int]) -> None:
    keys: ConfirmedKeys[int] = ConfirmedKeys(None)
    taken = [keys.add(number, 2, 10) for number in range(8)]
    confirmed: set[int] = set()
    for number in order:
        keys.confirm(taken[number])
        confirmed.add(number)
        whole = next(count for count in range(9) if count not in confirmed)
        assert keys.last == (whole - 1 if whole else None)
        assert (keys.rows, keys.outstanding_bytes) == (2 * whole, 10 * (8 - len(confirmed)))
    assert keys.all_confirmed


def test_rows_of_several_publications_are_confirmed_by_the_last_of_them_and_without_any_at_once() -> None:
    keys: ConfirmedKeys[int] = ConfirmedKeys(None)
    taken = keys.add(1, 2, 10, publications=2)
    keys.add(2, 0, 0, publications=0)
    lasts = [keys.last]
    for _publication in range(2):
        keys.confirm(taken)
        lasts.append(keys.last)
    assert lasts == [None, None, 2]
