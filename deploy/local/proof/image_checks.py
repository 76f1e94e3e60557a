"""What is asked of an image of services before anything runs in it."""

import json
from collections.abc import Sequence
from typing import Final

from deploy.local.platform.compose import Project

_SERVICES: Final = ("spanner_reader", "bigtable_reader", "cdc_consumer", "dead_letter")
IMAGES: Final = {**{service: (service,) for service in _SERVICES}, "toolbox": _SERVICES}
"""The services that each image holds."""
_TOOLS: Final = ("cc", "gcc", "make", "git", "pip", "pip3")
_ASKED: Final = """
import importlib, json, os, shutil, sys
own, others, tools = json.loads(sys.argv[1])
wrong = [] if os.getuid() else ["it runs as root"]
for one in own:
    importlib.import_module(f"services.{one}.__main__")
for other in others:
    try:
        importlib.import_module(f"services.{other}")
    except ModuleNotFoundError:
        continue
    wrong.append(f"it holds {other}")
wrong += [f"it has {tool}" for tool in tools if shutil.which(tool)]
print(json.dumps(wrong))
"""


def check_image(project: Project, name: str) -> Sequence[str]:
    """Return what is wrong with an image: it holds its services and no others, and no build tools."""
    others = [one for one in _SERVICES if one not in IMAGES[name]]
    image = project.image(name)
    alone = ("--rm", "--read-only", "--network", "none", "--cap-drop", "ALL")
    told = json.dumps([IMAGES[name], others, _TOOLS])
    said = project.docker("run", *alone, "--entrypoint", "python", image, "-c", _ASKED, told)
    return [f"image {name}: {what}" for what in json.loads(said.splitlines()[-1])]
