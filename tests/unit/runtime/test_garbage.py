"""What a Python worker has imported is not looked through after every task."""

import gc

from shared.runtime.garbage import exempt_imports


def test_what_is_imported_is_exempt_from_collections() -> None:
    exempt_imports()

    assert gc.get_freeze_count() > 10_000


def test_what_comes_later_is_collected_as_ever() -> None:
    exempt_imports()
    exempt = gc.get_freeze_count()
    later = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
    exempt_imports()

    assert len(later) == 1_000
    assert gc.get_freeze_count() <= exempt
