"""What has to be on this machine before anything is installed or started; run as a script by `make run` and `make up`.

The standard library alone, and nothing newer than Python 3.8, so that any Python there can name what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PYTHON_NEEDED = (3, 11)
JAVA_NEEDED = 17
SPANNER_BINARY = Path("bin/cloud_spanner_emulator/emulator_main")
BIGTABLE_BINARY = Path("platform/bigtable-emulator/cbtemulator")
PUBSUB_JARS = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"

_EMULATORS = ("Spanner", "Pub/Sub", "Bigtable")
_HOW_TO_GET = (
    "gcloud components install cloud-spanner-emulator pubsub-emulator bigtable, or with Google's apt repository: "
    "apt-get install google-cloud-cli-spanner-emulator google-cloud-cli-pubsub-emulator "
    "google-cloud-cli-bigtable-emulator"
)


def missing(environment: Mapping[str, str], python: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return everything that is missing, each with the way to get it."""
    found = []
    if python < PYTHON_NEEDED:
        found.append(
            "Python 3.11 or newer is needed, and this is {}: make install PYTHON=/path/to/python3.11".format(
                ".".join(map(str, python))
            )
        )
    return found + [wrong for _, wrong in (java(environment), sdk(environment)) if wrong]


def sdk(environment: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return the Cloud SDK that holds the emulators, or what is wrong.

    It is sought in CLOUDSDK_ROOT, in CLOUDSDK_ROOT_DIR, and where the `gcloud` on PATH belongs.
    """
    gcloud = shutil.which("gcloud", path=environment.get("PATH"))
    roots = [Path(environment[name]) for name in ("CLOUDSDK_ROOT", "CLOUDSDK_ROOT_DIR") if environment.get(name)]
    roots += [Path(gcloud).resolve().parents[1]] if gcloud else []
    if not roots:
        return None, (
            "the Cloud SDK was not found: set CLOUDSDK_ROOT to its directory or put `gcloud` on PATH. "
            "To get it: https://cloud.google.com/sdk/docs/install, and then " + _HOW_TO_GET
        )
    there = [_emulators_in(root) for root in roots]
    for root, found in zip(roots, there):  # noqa: B905  not in Python 3.8
        if len(found) == len(_EMULATORS):
            return root, ""
    lacking = [f"the {name} emulator" for name in _EMULATORS if not any(name in found for found in there)]
    return None, "the Cloud SDK in {} lacks {}. To get it: {}".format(
        ", ".join(map(str, roots)), " and ".join(lacking) or "one emulator each", _HOW_TO_GET
    )


def java(environment: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return a `java` that is new enough, or what is wrong."""
    home = environment.get("JAVA_HOME")
    place = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    how = f"Java {JAVA_NEEDED} or newer is needed (Pub/Sub emulator, Spark): apt-get install openjdk-17-jre-headless"
    if place is None or not Path(place).is_file():
        return None, "{}; none was found {}".format(how, "in JAVA_HOME=" + home if home else "on PATH")
    try:
        ran = subprocess.run([place, "-version"], capture_output=True, text=True, check=False, env=dict(environment))
    except OSError as error:
        return None, f"{how}; {place} cannot be run: {error.strerror}"
    version = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    if version is None or int(version.group(1)) < JAVA_NEEDED:
        return None, "{}; {} is {}".format(how, place, version.group(1) if version else "not a Java")
    return Path(place), ""


def pubsub_jar(root: Path) -> Path | None:
    """Return the Pub/Sub emulator of a Cloud SDK."""
    return max(root.glob(PUBSUB_JARS), default=None)


def _emulators_in(root: Path) -> list[str]:
    there = ((root / SPANNER_BINARY).is_file(), pubsub_jar(root), (root / BIGTABLE_BINARY).is_file())
    return [name for name, found in zip(_EMULATORS, there) if found]  # noqa: B905  not in Python 3.8


def main(environment: Mapping[str, str]) -> int:
    """Print all that is missing; return 1 if anything is."""
    found = missing(environment)
    for one in found:
        print("missing: " + one, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(os.environ))  # noqa: TID251  a program of its own
