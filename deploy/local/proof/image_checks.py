"""Check an image before anything runs in it."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from deploy.local.platform.compose import Project

_SERVICES: Final = (
    "services.spanner_reader",
    "services.bigtable_reader",
    "services.cdc_consumer",
    "services.dead_letter",
)
_EMULATORS: Final = ("emulators.bigquery", "emulators.bigtable_streams")
IMAGES: Final[Mapping[str, Sequence[str]]] = {
    **{package.rpartition(".")[2]: (package,) for package in (*_SERVICES, *_EMULATORS)},
    "toolbox": _SERVICES,
}
"""The packages that each image runs."""
_LONGEST: Final = timedelta(minutes=5)  # Java starts, on a machine that may be busy
_TOOLS: Final = ("cc", "gcc", "make", "git", "pip", "pip3")
_PROBLEMS: Final = """
import importlib, json, os, shutil, sys
own, others, tools = json.loads(sys.argv[1])
problems = [] if os.getuid() else ["it runs as root"]
for package in own:
    importlib.import_module(f"{package}.__main__")
for package in others:
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        continue
    problems.append(f"it holds {package}")
problems += [f"it has {tool}" for tool in tools if shutil.which(tool)]
print(json.dumps(problems))
"""
_CONSUMER: Final = "cdc_consumer"
_REFUSED_ARCHIVE: Final = """
import os, subprocess
from services.cdc_consumer.adapters.spark.spark_session import class_archive
archive = class_archive()
options = f"-Xshare:on -XX:SharedArchiveFile={archive}"
command = [archive.parent / "bin/spark-submit", "--driver-java-options", options, "--version"]
ran = subprocess.run(command, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True, text=True)
print((ran.stdout + ran.stderr)[-300:] if ran.returncode else "")
"""
"""Java starts with `-Xshare:on` only where it takes the archive: the classes of this Spark, made by this Java."""


def check_image(project: Project, name: str) -> Sequence[str]:
    """Return the problems of an image: it runs its own packages, holds no others, and has no build tools."""
    others = [one for one in (*_SERVICES, *_EMULATORS) if one not in IMAGES[name]]
    answer = _run_python(project, name, _PROBLEMS, json.dumps([IMAGES[name], others, _TOOLS]))
    problems = list(json.loads(answer.splitlines()[-1]))
    if name == _CONSUMER and (refusal := _run_python(project, name, _REFUSED_ARCHIVE).strip()):
        problems.append(f"Java refuses the archive of Spark's classes: {refusal}")
    return [f"image {name}: {problem}" for problem in problems]


def _run_python(project: Project, name: str, program: str, *arguments: str) -> str:
    """Run a program in a container without network, rights or a writable disk; return its output."""
    temporary = ("--tmpfs", "/tmp:exec,mode=1777")  # noqa: S108  the container's own
    alone = ("--rm", "--read-only", *temporary, "--network", "none", "--cap-drop", "ALL")
    command = ("run", *alone, "--entrypoint", "python", project.image(name), "-c", program, *arguments)
    return project.docker(*command, timeout=_LONGEST)
