"""Many items in portions that are bounded in bytes and in number."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shared.runtime.portions import cut


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.none() | st.integers(1, 4))
def test_portions_have_all_items_in_order_as_many_as_fit_and_one_that_is_too_large_comes_alone(
    sizes: list[int], most_bytes: int, most: int | None
) -> None:
    portions = list(cut(sizes, int, most_bytes, most))
    assert [size for portion in portions for size in portion] == sizes
    assert all(portions)
    assert all(len(portion) == 1 or sum(portion) <= most_bytes for portion in portions)
    assert most is None or all(len(portion) <= most for portion in portions)
    for portion, (first, *_others) in pairwise(portions):
        assert len(portion) == most or sum(portion) + first > most_bytes, "it had room for one more"


def test_a_portion_comes_as_soon_as_it_is_known_to_be_full() -> None:
    taken = []

    def size(item: int) -> int:
        taken.append(item)
        return 1

    assert next(cut(range(10), size, 3)) == [0, 1, 2]
    assert taken == [0, 1, 2, 3]
