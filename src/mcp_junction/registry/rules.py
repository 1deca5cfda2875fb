"""Rules: what a server may not be registered as or changed to, told before it is stored or run.

The same rules hold again whenever it is connected to: names may lead elsewhere by then, and a
variable may hold anything. Servers of the config file are not asked about.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from mcp_junction.config.registration import Registration, read_change
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.errors import InvalidChange, Problem, ProblemCode, VaultError, VersionConflict
from mcp_junction.policy.outgoing import Permissions, url_refusal
from mcp_junction.policy.programs import allow_list, refusal
from mcp_junction.registry.definitions import definition_for, record_of, registration_of
from mcp_junction.store.records import ServerRecord
from mcp_junction.vault.masking import unmasked


def check(made: Registration, environ: Mapping[str, str], settings: Settings) -> None:
    """Raises InvalidChange for an address or a program that is not allowed."""
    problems = _refusals(made, definition_for(record_of(made), environ, settings), settings)
    if problems:
        raise InvalidChange(problems)


def change_of(record: ServerRecord, body: Any) -> Registration:
    """A server after a change; a masked value is the old one. Raises InvalidChange."""
    if isinstance(body, dict) and isinstance(body.get("connection_config"), dict):
        try:
            config = unmasked(body["connection_config"], record.connection_config)
        except VaultError as error:
            place = "$.connection_config"
            raise InvalidChange([_problem(place, str(error))]) from None
        body = {**body, "connection_config": config}
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
        why = refusal(definition, allow_list(settings.stdio_allow), executable)
        found.append(("$.connection_config.command", why))
    else:
        name = "base_url" if made.connection_config.url is None else "url"
        found.append((f"$.connection_config.{name}", url_refusal(definition.url, allowed)))
    if made.health_check_url is not None:
        found.append(("$.health_check_url", url_refusal(made.health_check_url, allowed)))
    return [_problem(path, why) for path, why in found if why is not None]


def _problem(path: str, message: str) -> Problem:
    return Problem(ProblemCode.INVALID_SCHEMA, path, message)
