"""Full resource names of topics and subscriptions."""


def topic_path(project: str, topic: str) -> str:
    """Return ``projects/P/topics/T``; a name that is full already is left as it is."""
    return topic if topic.startswith("projects/") else f"projects/{project}/topics/{topic}"


def published_to(project: str, topic: str, emulator_host: str | None) -> str:
    """Return what identifies a topic: its full name, and whether an emulator has it."""
    path = topic_path(project, topic)
    return path if emulator_host is None else f"{path} of an emulator"


def subscription_path(project: str, subscription: str) -> str:
    """Return ``projects/P/subscriptions/S``; a name that is full already is left as it is."""
    return subscription if subscription.startswith("projects/") else f"projects/{project}/subscriptions/{subscription}"


def short_name(path: str) -> str:
    """Return the last part of a full name: what gcloud takes together with ``--project``."""
    return path.rpartition("/")[2]


def project_of(path: str) -> str:
    """Return the project of a full name."""
    return path.split("/")[1]
