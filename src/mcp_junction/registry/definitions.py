"""Converts server definitions between file, REST and store; and checks registrations.

The same rules are applied again at each connect: a host name may lead elsewhere by then, and a
variable may hold anything. They do not apply to servers of the config file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.config.registration import (
    CHANGEABLE,
    ConnectionConfig,
    Registration,
    definition_of,
    read_change,
)
from mcp_junction.config.servers import OPTIONS, ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.config.variables import without_own
from mcp_junction.errors import InvalidChange, MaskError, Problem, VersionConflict, invalid_at
from mcp_junction.policy.outgoing import Permissions, url_refusal
from mcp_junction.policy.programs import parse_allow_list, program_refusal
from mcp_junction.redaction.connections import (
    check_unmasked,
    mask_connection,
    restore_masked,
    restore_url,
)
from mcp_junction.store.records import ServerRecord

FILE: Final = "file"
API: Final = "api"
RECONNECT_FIELDS: Final = frozenset(
    {"transport_type", "connection_config"}
    | {name for name, option in OPTIONS.items() if option.reconnects}
)
"""Fields whose change needs a new connection."""
_STORED_FIELDS: Final = set(Registration.__struct_fields__) - {"auto_connect"}


def record_of(registration: Registration) -> ServerRecord:
    """Make a new record for a registration."""
    return ServerRecord(id=str(uuid4()), origin=API, **fields_of(registration))


def fields_of(registration: Registration) -> dict[str, Any]:
    """Return the fields of a registration that are stored."""
    fields = {name: getattr(registration, name) for name in _STORED_FIELDS}
    return {**fields, "connection_config": msgspec.to_builtins(registration.connection_config)}


def registration_of(record: ServerRecord) -> Registration:
    """Return the registration that a record stores."""
    fields = {name: getattr(record, name) for name in _STORED_FIELDS}
    config = msgspec.convert(record.connection_config, ConnectionConfig)
    return Registration(**{**fields, "connection_config": config})


def definition_for(
    record: ServerRecord, variables: Mapping[str, str], settings: Settings
) -> ServerDefinition:
    """Make the definition of a registered server; with a fault where a variable is not set."""
    registration = registration_of(record)
    found, _ = definition_of(registration, without_own(variables), settings)
    return found._replace(id=record.id)


def file_fields(definition: ServerDefinition) -> dict[str, Any]:
    """Return the fields that are stored of a server of the config file, to be shown only."""
    names = (
        ("command", "args", "env", "cwd")
        if definition.transport == "stdio"
        else ("url", "headers", "auth")
    )
    entry = definition.file_entry or {**definition._asdict(), "auth": None}
    config = {name: entry[name] for name in names if entry.get(name)}
    return {
        "transport_type": definition.transport.upper(),
        "connection_config": mask_connection(config),
        "enabled": True,
        **definition.options,
    }


def file_record(definition: ServerDefinition) -> ServerRecord:
    """Make a new record for a server of the config file."""
    return ServerRecord(
        id=str(uuid4()),
        name=definition.key,
        origin=FILE,
        status="CONNECTING",
        **file_fields(definition),
    )


# -- checks of registrations


def check_allowed(
    registration: Registration, environ: Mapping[str, str], settings: Settings
) -> None:
    """Raise InvalidChange for an address or a program that is not allowed."""
    problems = _refusals(
        registration, definition_for(record_of(registration), environ, settings), settings
    )
    if problems:
        raise InvalidChange(problems)


def check_registration(
    registration: Registration, environ: Mapping[str, str], settings: Settings
) -> None:
    """Check a new registration as ``check_allowed`` does, and for masks. Raises InvalidChange."""
    with _mask_errors_at("$.connection_config"):
        check_unmasked(msgspec.to_builtins(registration.connection_config))
    with _mask_errors_at("$.health_check_url"):
        check_unmasked(registration.health_check_url)
    check_allowed(registration, environ, settings)


def read_changed(
    record: ServerRecord, body: Any, *, is_registered_again: bool = False
) -> Registration:
    """Apply a change to a registration; a masked value stays as it was. Raises InvalidChange.

    Another transport needs a new registration.
    """
    changeable = (*CHANGEABLE, "transport_type") if is_registered_again else CHANGEABLE
    if isinstance(body, dict):
        body = dict(body)
        with _mask_errors_at("$.connection_config"):
            if isinstance(config := body.get("connection_config"), dict):
                body["connection_config"] = restore_masked(config, record.connection_config)
        with _mask_errors_at("$.health_check_url"):
            if isinstance(url := body.get("health_check_url"), str):
                body["health_check_url"] = restore_url(url, record.health_check_url)
    registration, problems = read_change(registration_of(record), body, changeable)
    if registration is None:
        raise InvalidChange(problems)
    return registration


def check_version(record: ServerRecord, wanted: int | None) -> None:
    """Raise VersionConflict unless a record has the version ``wanted``; None is any."""
    if wanted is not None and wanted != record.version:
        raise VersionConflict("the server", record.version)


def _refusals(
    registration: Registration, definition: ServerDefinition, settings: Settings
) -> list[Problem]:
    """Return why a server may not be registered; an empty list when it may."""
    allowed = Permissions(registration.allow_private, registration.allow_http)
    found: list[tuple[str, str | None]] = []
    if definition.fault:
        pass  # checked when its variables are set
    elif definition.transport == "stdio":
        executable = shutil.which(definition.command) or definition.command
        why = program_refusal(definition, parse_allow_list(settings.stdio_allow), executable)
        found.append(("$.connection_config.command", why))
    else:
        name = "base_url" if registration.connection_config.url is None else "url"
        found.append((f"$.connection_config.{name}", url_refusal(definition.url, allowed)))
    if registration.health_check_url is not None:
        found.append(("$.health_check_url", url_refusal(registration.health_check_url, allowed)))
    return [invalid_at(path, why) for path, why in found if why is not None]


@contextmanager
def _mask_errors_at(path: str) -> Iterator[None]:
    """Turn a MaskError into an InvalidChange that names ``path``."""
    try:
        yield
    except MaskError as error:
        raise InvalidChange([invalid_at(path, str(error))]) from None
