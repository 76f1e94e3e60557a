"""Sizes in bytes as people write them and as they are shown."""

import pytest

from shared.contracts.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1_000), ("5kB", 5_000), ("1.5gb", 1_500_000_000), ("2 TB", 2 * 10**12), ("1TiB", 1 << 40)],
)
def test_a_size_is_a_number_of_bytes_or_one_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1e3", "0.5", "5 parsecs", "GB", "1,5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_500_000_000, "1.5 GB"),
        (2 * 10**18, "2000.0 PB"),
    ],
)
def test_a_size_is_shown_with_a_unit(size: int, shown: str) -> None:
    assert format_size(size) == shown
