"""A server as it is stored, registered and connected to; and what it may not be registered as.

The rules hold again whenever it is connected to: names may lead elsewhere by then, and a variable
may hold anything. Servers of the config file are not checked by them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.config.registration import (
    ConnectionConfig,
    Registration,
    definition_of,
    read_change,
)
from mcp_junction.config.servers import OPTIONS, ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.config.variables import without_own
from mcp_junction.errors import InvalidChange, MaskError, Problem, ProblemCode, VersionConflict
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
CONNECTING: Final = frozenset(
    {"transport_type", "connection_config"}
    | {name for name, option in OPTIONS.items() if option.reconnects}
)
"""Fields whose change needs a new connection."""
_KEPT: Final = set(Registration.__struct_fields__) - {"auto_connect"}


def record_of(made: Registration) -> ServerRecord:
    """A new record for a registration."""
    return ServerRecord(id=str(uuid4()), origin=API, **fields_of(made))


def fields_of(made: Registration) -> dict[str, Any]:
    """What of a registration is kept."""
    fields = {name: getattr(made, name) for name in _KEPT}
    return {**fields, "connection_config": msgspec.to_builtins(made.connection_config)}


def registration_of(record: ServerRecord) -> Registration:
    """The registration that a record keeps."""
    fields = {name: getattr(record, name) for name in _KEPT}
    config = msgspec.convert(record.connection_config, ConnectionConfig)
    return Registration(**{**fields, "connection_config": config})


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
        **definition.options,
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


# -- what a server may be registered as


def check_allowed(made: Registration, environ: Mapping[str, str], settings: Settings) -> None:
    """Raises InvalidChange for an address or a program that is not allowed."""
    problems = _refusals(made, definition_for(record_of(made), environ, settings), settings)
    if problems:
        raise InvalidChange(problems)


def check_registration(made: Registration, environ: Mapping[str, str], settings: Settings) -> None:
    """Check a new registration: as ``check`` does, and for masks. Raises InvalidChange."""
    with _mask_errors_at("$.connection_config"):
        check_unmasked(msgspec.to_builtins(made.connection_config))
    with _mask_errors_at("$.health_check_url"):
        check_unmasked(made.health_check_url)
    check_allowed(made, environ, settings)


def read_changed(record: ServerRecord, body: Any) -> Registration:
    """A server after a change; a masked value is the old one. Raises InvalidChange."""
    if isinstance(body, dict):
        body = dict(body)
        with _mask_errors_at("$.connection_config"):
            if isinstance(config := body.get("connection_config"), dict):
                body["connection_config"] = restore_masked(config, record.connection_config)
        with _mask_errors_at("$.health_check_url"):
            if isinstance(url := body.get("health_check_url"), str):
                body["health_check_url"] = restore_url(url, record.health_check_url)
    made, problems = read_change(registration_of(record), body)
    if made is None:
        raise InvalidChange(problems)
    return made


def check_version(record: ServerRecord, wanted: int | None) -> None:
    """Raises VersionConflict unless a server is still the one that was read; None is any."""
    if wanted is not None and wanted != record.version:
        raise VersionConflict("the server", record.version)


def _refusals(
    made: Registration, definition: ServerDefinition, settings: Settings
) -> list[Problem]:
    """Why a server may not be registered so; nothing when it may."""
    allowed = Permissions(made.allow_private, made.allow_http)
    found: list[tuple[str, str | None]] = []
    if definition.fault:
        pass  # what its variables hold is seen when they hold something
    elif definition.transport == "stdio":
        executable = shutil.which(definition.command) or definition.command
        why = program_refusal(definition, parse_allow_list(settings.stdio_allow), executable)
        found.append(("$.connection_config.command", why))
    else:
        name = "base_url" if made.connection_config.url is None else "url"
        found.append((f"$.connection_config.{name}", url_refusal(definition.url, allowed)))
    if made.health_check_url is not None:
        found.append(("$.health_check_url", url_refusal(made.health_check_url, allowed)))
    return [_problem(path, why) for path, why in found if why is not None]


@contextmanager
def _mask_errors_at(path: str) -> Iterator[None]:
    """Turn a MaskError into an InvalidChange that names ``path``."""
    try:
        yield
    except MaskError as error:
        raise InvalidChange([_problem(path, str(error))]) from None


def _problem(path: str, message: str) -> Problem:
    return Problem(ProblemCode.INVALID_SCHEMA, path, message)
