"""What `doctor` asks for, the Terraform module makes, as far as it is for the module to make.

Which checks there are is compared where each service's doctor examines a healthy setting (tests/integration).
"""

import re
from pathlib import Path

from tests.worlds.doctor_checks import MADE

MODULE = Path(__file__).resolve().parents[2] / "deploy" / "terraform"


def test_the_module_has_each_resource_that_a_check_is_about() -> None:
    text = "\n".join(file.read_text() for file in MODULE.glob("*.tf"))
    there = {f"{kind}.{name}" for kind, name in re.findall(r'^resource "(\w+)" "(\w+)"', text, re.MULTILINE)}

    assert {address for addresses in MADE.values() for address in addresses} <= there
