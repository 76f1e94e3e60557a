"""On what disk the store's file is. A container's own disk and memory go with the container, dead letters too."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_GOES: Final = {
    "overlay": "a container's own disk, which goes with the container",
    "aufs": "a container's own disk, which goes with the container",
    "tmpfs": "memory, which goes with the container or the machine",
    "ramfs": "memory, which goes with the container or the machine",
}


def mounts() -> str:
    """Return what the kernel says is mounted here (proc(5), mountinfo); nothing where it does not say."""
    with suppress(OSError):
        return _MOUNTS.read_text(errors="surrogateescape")
    return ""


def short_lived(database: str, mounted: str) -> str | None:
    """Return what the file of a store (its URL) is on, if that goes with its container; None of all else."""
    try:
        url = make_url(database)
    except ArgumentError:
        return None
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    file = os.path.realpath(url.database)
    best, kind = "", ""
    for line in mounted.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        if len(point) >= len(best) and f"{file}/".startswith(f"{point.rstrip('/')}/"):
            best, kind = point, after.split(" ")[0]  # the last one that is mounted at a place is the one that is seen
    return _GOES.get(kind)
