"""What the contract tests of the Bigtable reader's partition table share."""

from functools import partial

import pytest

from tests.contract.bigtable_rigs import Run, run_rigs


@pytest.fixture
def run(bigtable_emulator: str) -> Run:
    """Return a function that runs a scenario on rigs in the emulator."""
    return partial(run_rigs, bigtable_emulator)
