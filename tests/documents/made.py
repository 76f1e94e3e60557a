"""The documents that are made from code, each a file of `docs/` and what its text is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.documents import (
    chart_values,
    commands,
    configuration,
    errors,
    log_events,
    measurements,
    metrics,
    reasons,
    roles,
    wire_messages,
)
from tests.documents.drawings import DRAWINGS

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"

DOCUMENTS: Final[Mapping[str, Callable[[], str]]] = {
    configuration.FILE: configuration.text,
    chart_values.FILE: chart_values.text,
    metrics.FILE: metrics.text,
    commands.FILE: commands.text,
    errors.FILE: errors.text,
    log_events.FILE: log_events.text,
    reasons.FILE: reasons.text,
    roles.FILE: roles.text,
    **DRAWINGS,
    **wire_messages.FILES,
    **measurements.FILES,
}
