"""Count the starts of Spark: a `java` in front of the real one notes each start of Spark's launcher in a file.

Each start of Spark takes 5 to 9 seconds of a core, so a run has a limit of them. PATH and JAVA_HOME are what every
process of the tests inherits, those of `make run` too; Spark's scripts take `java` from them.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

LIMIT: Final = 15
"""How many starts of Spark a run of whole folders may need."""
EXHAUSTIVE_LIMIT: Final = 49
"""The same of `tests/exhaustive`, which has benchmarks, a cluster and older Sparks, and is no part of `make test`."""

_LAUNCHER: Final = "org.apache.spark.launcher.Main org.apache.spark.deploy.SparkSubmit"


class SparkStarts:
    """The starts of Spark by processes that inherit an environment."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Put the noting `java` into ``environ``, unless there is no Java at all: then Spark does not start."""
        self._directory = Path(tempfile.mkdtemp(prefix="spark-starts-"))
        self._file = self._directory / "starts"
        self._file.touch()
        self._seen = 0
        home = environ.get("JAVA_HOME")
        real = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
        if real is None or not os.access(real, os.X_OK):
            return
        java = self._directory / "bin" / "java"
        java.parent.mkdir()
        java.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" {_LAUNCHER} "*) echo start >>{shlex.quote(str(self._file))} ;; esac\n'
            f'exec {shlex.quote(real)} "$@"\n',
            encoding="utf-8",
        )
        java.chmod(0o755)
        environ["PATH"] = f"{java.parent}{os.pathsep}{environ.get('PATH', '')}"
        if home:
            environ["JAVA_HOME"] = str(self._directory)

    def new(self) -> int:
        """Return how many starts there were since this was asked before."""
        count = len(self._file.read_text(encoding="utf-8").splitlines())
        new, self._seen = count - self._seen, count
        return new

    def close(self) -> None:
        """Remove the `java` and its file; processes that are left find neither."""
        shutil.rmtree(self._directory)
