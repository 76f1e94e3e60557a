"""Which versions of Spark the consumer runs on. Nothing is imported here that an older PySpark does not have."""

from typing import Final

from shared.contracts.errors import MisconfiguredError

_FIRST: Final = (4, 0)
_FIRST_UNTRIED: Final = (4, 4)


def check_spark(version: str) -> None:
    """Raise MisconfiguredError unless this is a version of PySpark that the consumer's tests run on."""
    if not _FIRST <= major_minor(version) < _FIRST_UNTRIED:
        raise MisconfiguredError(
            "spark-version-unsupported",
            f"the consumer runs on Spark {_written(_FIRST)} and newer, below {_written(_FIRST_UNTRIED)}; PySpark "
            f"{version} is there: see docs/how-to/run-on-managed-spark.md for which service has which",
        )


def major_minor(version: str) -> tuple[int, int]:
    """Return the first two parts of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _written(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)
