"""`deploy/helm/millrace/values.schema.json`: what the chart's values may be, from the settings classes."""

import dataclasses
import json
import typing
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from services.bigtable_reader.settings import Settings as BigtableReaderSettings
from services.cdc_consumer.settings import Settings as ConsumerSettings
from services.dead_letter.settings import Settings as DeadLetterSettings
from services.spanner_reader.settings import Settings as SpannerReaderSettings
from shared.runtime.settings import essential, hidden, value_shown, variable_name

FILE: Final = "../deploy/helm/millrace/values.schema.json"

_BY_CHART: Final = frozenset(
    {
        "API_HOST",
        "API_PORT",
        "API_TOKEN",
        "API_TOKEN_FILE",
        "CHECKPOINT_LOCATION",
        "CONSOLE_SERVICES",
        "CONSOLE_SETTINGS",
        "DATABASE",
        "HOST",
        "PORT",
        "TABLES_FILE",
        "TASKS_PORT",
    }
)
"""What the templates set; a secret is no value of a chart."""

_DURATION: Final = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"}
_TYPES: Final[Mapping[Any, Mapping[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    timedelta: _DURATION,
    Path: {"type": "string"},
}
_TEXT: Final = {"type": "string"}
_NAME: Final = {"type": "string", "minLength": 1}
_COUNT: Final = {"type": "integer", "minimum": 1}
_QUANTITY: Final = {"type": ["string", "number"]}
_AMOUNTS: Final = {"type": "object", "additionalProperties": _QUANTITY}
_FLAG: Final = {"type": "boolean"}
_PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65_535}
_DIGEST: Final = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_MEMORY: Final = {"type": "string", "pattern": "^[1-9][0-9]*[kmgt]$"}


def text() -> str:
    """Return the whole schema."""
    return json.dumps(_values(), indent=2) + "\n"


def _values() -> Mapping[str, Any]:
    resources = _object({"requests": _AMOUNTS, "limits": _AMOUNTS})
    services = ("spanner_reader", "bigtable_reader", "cdc_consumer", "dead_letter")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The values of the chart millrace; made by `make docs`",
        **_object(
            {
                "image": _object(
                    {
                        "registry": _NAME,
                        "tag": _TEXT,
                        "digests": _object(dict.fromkeys(services, _DIGEST)),
                        "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
                    }
                ),
                "serviceAccounts": _object(dict.fromkeys(services, _TEXT)),
                "tablesFile": _TEXT,
                "spannerReaders": _readers(SpannerReaderSettings, resources),
                "bigtableReaders": _readers(BigtableReaderSettings, resources),
                "readerDefaults": _object({"replicas": _COUNT, "resources": resources}),
                "consumer": _object(
                    {
                        "kind": {"enum": ["StatefulSet", "SparkApplication"]},
                        "replicas": _COUNT,
                        "settings": _settings(ConsumerSettings),
                        "checkpointStorage": _NAME,
                        "maskKeySecret": _TEXT,
                        "storageClass": _TEXT,
                        "resources": resources,
                        "executors": {"type": "integer", "minimum": 0},
                        "executorCores": _COUNT,
                        "executorMemory": _MEMORY,
                        "executorMemoryOverhead": _MEMORY,
                    },
                    required=["settings"],
                ),
                "deadLetter": _object(
                    {
                        "settings": _settings(DeadLetterSettings),
                        "storage": _TEXT,
                        "storageClass": _TEXT,
                        "databaseSecret": _TEXT,
                        "apiTokenSecret": _TEXT,
                        "resources": resources,
                    },
                    required=["settings"],
                ),
                "podDisruptionBudgets": _FLAG,
                "networkPolicies": _object(
                    {
                        "enabled": _FLAG,
                        "monitoringNamespace": _NAME,
                        "consoleNamespaces": {"type": "array", "items": _NAME},
                        "egressPorts": {"type": "array", "items": _PORT},
                    }
                ),
                "keda": _object(
                    {
                        "enabled": _FLAG,
                        "maxReaders": _COUNT,
                        "readerCpuPercent": {"type": "integer", "minimum": 1, "maximum": 100},
                        "prometheusAddress": _TEXT,
                        "readerLagSeconds": _COUNT,
                        "maxConsumers": _COUNT,
                        "oldestMessageSeconds": _COUNT,
                    }
                ),
                "global": {"type": "object"},
            },
            required=["consumer", "deadLetter"],
        ),
    }


def _readers(settings: type, resources: Mapping[str, Any]) -> Mapping[str, Any]:
    reader = _object(
        {"replicas": _COUNT, "settings": _settings(settings), "resources": resources}, required=["settings"]
    )
    names = {"pattern": "^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": reader}


def _settings(settings: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(settings)
    given = [field for field in dataclasses.fields(settings) if variable_name(field) not in _BY_CHART]
    return _object(
        {variable_name(field): _setting(hints[field.name], field) for field in given},
        required=[variable_name(field) for field in given if field.default is dataclasses.MISSING],
    )


def _setting(hint: Any, field: dataclasses.Field[Any]) -> Mapping[str, Any]:
    hint, metadata = essential(hint), field.metadata
    assert metadata["shown"] is not hidden, f"{field.name} is a secret: the chart takes it from one"
    found: dict[str, Any] = {"description": metadata["description"]}
    if typing.get_origin(hint) is typing.Literal:
        return found | {"enum": list(typing.get_args(hint))}
    found |= _TYPES.get(hint, _TEXT)
    if found["type"] in ("integer", "number"):
        bounds = {"minimum": metadata["least"], "maximum": metadata["most"]}
        found |= {name: value for name, value in bounds.items() if value is not None}
    if field.default not in (dataclasses.MISSING, None):
        found["default"] = value_shown(hint, field.default) if hint is not bool else field.default
    return found


def _object(properties: Mapping[str, Any], required: Collection[str] = ()) -> Mapping[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, "properties": properties, **needed}
