"""Why a service last ended with an error: one process writes it down, and the metrics of the next show it.

It is in a directory of this user's in the temporary place of the machine. That outlives the process, and in Kubernetes
the container, whose /tmp belongs to the pod. Nothing depends on it, so what cannot be written or read is left out.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

FAILED: Final = "failed"
"""The code of an error that the next start may not meet again. All others are those of a MisconfiguredError."""


def keep_last_error(service: str, code: str, environ: Mapping[str, str]) -> None:
    """Write down that the service ends now, and by which error."""
    with contextlib.suppress(OSError):
        file = _file(service, environ)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(file.parent):
            file.write_text(f"{time.time():.0f} {code}", encoding="ascii")


def read_last_error(service: str, environ: Mapping[str, str]) -> tuple[float, str] | None:
    """Return when the service last ended with an error, in seconds since the epoch, and its code."""
    with contextlib.suppress(OSError, ValueError):
        file = _file(service, environ)
        if _is_ours(file.parent):
            at, code = file.read_text(encoding="ascii").split()
            return float(at), code
    return None


def _file(service: str, environ: Mapping[str, str]) -> Path:
    """Return the file of a service: several of one name on a machine have ports of their own."""
    name = quote(f"{service} {environ.get('PORT', '')}", safe="")
    return Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}" / f"last-error-{name}"


def _is_ours(directory: Path) -> bool:
    """Return whether this user made it: in a temporary place another user may have been first."""
    return directory.lstat().st_uid == os.getuid() and not directory.is_symlink()
