"""Commands of the services, run in this process: a process of its own takes longer to start than a command to run."""

import importlib
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess


def run_command(module: str, words: Sequence[str], environment: Mapping[str, str]) -> "CompletedProcess[str]":
    """Run `python -m module words` with this environment; return its exit code and what it prints.

    Only from one thread at a time: environment and standard streams are those of the process.
    """
    out, err, before = io.StringIO(), io.StringIO(), dict(os.environ)
    main = importlib.import_module(f"{module}.__main__").main
    try:
        os.environ.clear()
        os.environ.update(environment)
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = main([*words])
            except SystemExit as ended:  # of a command line that is refused, and of --help
                code = ended.code
    finally:
        os.environ.clear()
        os.environ.update(before)
    return CompletedProcess([module, *words], code or 0, out.getvalue(), err.getvalue())
