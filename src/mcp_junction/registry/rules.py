"""Rules: what a registered server may not be, told before anything is stored or run.

The same rules hold again whenever it is connected to: names may lead elsewhere by then, and a
variable may hold anything. Servers of the config file are not asked about.
"""

from __future__ import annotations

import shutil

from mcp_junction.config.registration import Registration
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.errors import Problem, ProblemCode
from mcp_junction.policy.outgoing import Permissions, url_refusal
from mcp_junction.policy.programs import allow_list, refusal


def refusals(made: Registration, definition: ServerDefinition, settings: Settings) -> list[Problem]:
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
    return [
        Problem(ProblemCode.INVALID_SCHEMA, path, why) for path, why in found if why is not None
    ]
