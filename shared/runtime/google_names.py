"""The forms of Google Cloud names, for ``check`` of a setting: a wrong form is named before any service is called."""

import re
from collections.abc import Callable
from typing import Final

_PROJECT: Final = re.compile(r"(?:[a-z0-9.-]+:)?[a-z0-9][a-z0-9-]*", re.ASCII)
# Pub/Sub refuses fewer than three characters too; its emulator takes them.
_RESOURCE: Final = re.compile(r"[A-Za-z][A-Za-z0-9._~+%-]{0,254}", re.ASCII)
_DATASET: Final = re.compile(r"[A-Za-z0-9_]{1,1024}", re.ASCII)
_RULE: Final = (
    "3 to 255 letters, digits and any of - . _ ~ + %, the first one a letter, and no name that starts with 'goog'"
)


def project_id(text: str) -> None:
    """Refuse a text that cannot be the id of a project, such as the name that the console shows."""
    if _PROJECT.fullmatch(text) is None:
        raise ValueError(
            "not a project id: lowercase letters, digits and hyphens only; `gcloud projects list` shows the ids"
        )


def dataset_id(text: str) -> None:
    """Refuse a text that cannot be the id of a dataset, such as one that has its project before it."""
    if _DATASET.fullmatch(text) is None:
        raise ValueError(
            "not the id of a dataset: letters, digits and _ only, at most 1,024; the project goes into BIGQUERY_PROJECT"
        )


def _resource(kind: str) -> Callable[[str], None]:
    full = re.compile(rf"projects/[^/]+/{kind}s/(?P<name>[^/]+)")

    def check(text: str) -> None:
        in_full = full.fullmatch(text)
        if "/" in text and in_full is None:
            raise ValueError(f"neither the id of a {kind} nor projects/PROJECT/{kind}s/ID")
        name = in_full["name"] if in_full else text
        if _RESOURCE.fullmatch(name) is None or name.lower().startswith("goog"):
            raise ValueError(f"not the id of a {kind}: {_RULE}")

    return check


topic_id: Final = _resource("topic")
subscription_id: Final = _resource("subscription")
