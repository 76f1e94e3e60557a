"""How many parts a table is cut into, where Spanner would read it in more."""

import pytest

from services.spanner_reader.adapters.snapshot.rows import spread


def tokens(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 199, 200])
def test_few_parts_stay_as_they_are(count: int) -> None:
    assert spread(tokens(count), 200) == tokens(count)


@pytest.mark.parametrize("count", [201, 250, 400, 999, 10_000, 200_000])
def test_of_many_parts_so_many_are_taken_from_all_over_them_beginning_with_the_first(count: int) -> None:
    taken = [int(token) for token in spread(tokens(count), 200)]
    assert len(taken) == 200
    assert taken[0] == 0
    gaps = {later - one for one, later in zip(taken, [*taken[1:], count], strict=True)}
    assert gaps <= {count // 200, count // 200 + 1}
