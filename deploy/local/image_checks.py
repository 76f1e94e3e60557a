"""What is asked of a service's image before anything runs in it."""

import json
from collections.abc import Sequence
from typing import Final

from deploy.local.compose import Project

SERVICES: Final = ("spanner_reader", "bigtable_reader", "cdc_consumer", "dead_letter")
_TOOLS: Final = ("cc", "gcc", "make", "git", "pip", "pip3")
_ASKED: Final = """
import importlib, json, os, shutil, sys
own, others, tools = json.loads(sys.argv[1])
wrong = [] if os.getuid() else ["it runs as root"]
importlib.import_module(f"services.{own}.settings")
for other in others:
    try:
        importlib.import_module(f"services.{other}")
    except ModuleNotFoundError:
        continue
    wrong.append(f"it holds {other}")
wrong += [f"it has {tool}" for tool in tools if shutil.which(tool)]
print(json.dumps(wrong))
"""


def check_image(project: Project, service: str) -> Sequence[str]:
    """Return what is wrong with the image of a service: it holds that service and no other, and no build tools."""
    others = [one for one in SERVICES if one != service]
    image = project.image(service)
    alone = ("--rm", "--read-only", "--network", "none", "--cap-drop", "ALL")
    told = json.dumps([service, others, _TOOLS])
    said = project.docker("run", *alone, "--entrypoint", "python", image, "-c", _ASKED, told)
    return [f"image {service}: {what}" for what in json.loads(said.splitlines()[-1])]
