"""Definitions: a server as it is stored, as it is registered and as it is connected to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.config.registration import ConnectionConfig, Registration, definition_of
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.config.variables import without_own
from mcp_junction.redaction.connections import mask_connection
from mcp_junction.store.records import ServerRecord

FILE: Final = "file"
API: Final = "api"
CONNECTING: Final = frozenset(
    {"transport_type", "connection_config", "isolation", "allow_private", "allow_http"}
)
"""What a change of needs a new connection."""


def record_of(made: Registration) -> ServerRecord:
    """A new record for a registration."""
    return ServerRecord(id=str(uuid4()), origin=API, **fields_of(made))


def fields_of(made: Registration) -> dict[str, Any]:
    """What of a registration is kept."""
    return {
        "name": made.name,
        "transport_type": made.transport_type,
        "connection_config": msgspec.to_builtins(made.connection_config),
        "description": made.description,
        "health_check_url": made.health_check_url,
        "enabled": made.enabled,
        "isolation": made.isolation,
        "pin": made.pin,
        "trust_annotations": made.trust_annotations,
        "allow_private": made.allow_private,
        "allow_http": made.allow_http,
        "timeout_ms": made.timeout_ms or None,
    }


def registration_of(record: ServerRecord) -> Registration:
    """The registration that a record keeps."""
    return Registration(
        name=record.name,
        transport_type=record.transport_type,
        connection_config=msgspec.convert(record.connection_config, ConnectionConfig),
        description=record.description,
        health_check_url=record.health_check_url,
        enabled=record.enabled,
        isolation=record.isolation,
        pin=record.pin,
        trust_annotations=record.trust_annotations,
        allow_private=record.allow_private,
        allow_http=record.allow_http,
        timeout_ms=record.timeout_ms or 0,
    )


def definition_for(
    record: ServerRecord, variables: Mapping[str, str], settings: Settings
) -> ServerDefinition:
    """How to connect to a registered server now; with a fault where a variable is not set."""
    made = registration_of(record)
    found, _ = definition_of(made, without_own(variables), settings)
    return found._replace(id=record.id)


def file_fields(definition: ServerDefinition) -> dict[str, Any]:
    """What is kept of a server of the config file: to be shown, not to be connected by."""
    names = (
        ("command", "args", "env", "cwd") if definition.transport == "stdio" else ("url", "headers")
    )
    written = definition.written or definition._asdict()
    config = {name: written[name] for name in names if written.get(name)}
    return {
        "transport_type": definition.transport.upper(),
        "connection_config": mask_connection(config),
        "enabled": True,
        "isolation": definition.isolation,
        "pin": definition.pin,
        "allow_private": definition.allow_private,
        "allow_http": definition.allow_http,
        "timeout_ms": definition.timeout_ms or None,
    }


def file_record(definition: ServerDefinition) -> ServerRecord:
    """A new record for a server of the config file."""
    return ServerRecord(
        id=str(uuid4()),
        name=definition.key,
        origin=FILE,
        status="CONNECTING",
        **file_fields(definition),
    )
