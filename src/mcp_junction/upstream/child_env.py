"""The environment and the command of a server's process.

The environment is minimal, with two markers of ours: which server it is, so that its orphans can be
found (set by the warden), and the chain of config files above it, so that a cycle is noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.variables import is_common_variable, is_own_variable
from mcp_junction.errors import Phase, ServerError

CHAIN_VARIABLE = "MCP_JUNCTION_CHAIN"


def child_env(
    definition: ServerDefinition, environ: Mapping[str, str], identity: str, *, inherit: bool
) -> dict[str, str]:
    """Make the environment of a server's process.

    With ``inherit`` it has all our variables, not only the common ones; but never Junction's own.
    """
    env = {
        name: value
        for name, value in environ.items()
        if is_common_variable(name) or (inherit and not is_own_variable(name))
    }
    env.update(definition.env)
    above = environ.get(CHAIN_VARIABLE)
    env[CHAIN_VARIABLE] = f"{above},{identity}" if above else identity
    return env


def is_circular(environ: Mapping[str, str], identity: str) -> bool:
    """Whether a Junction above us serves the same config already."""
    return identity in environ.get(CHAIN_VARIABLE, "").split(",")


def find_command(definition: ServerDefinition, env: Mapping[str, str]) -> str:
    """Find the program to run. Raises ServerError."""
    command = definition.command
    if os.path.dirname(command):
        return command  # a path, relative to cwd; exec fails if it is missing
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    for folder in (*folders, os.path.dirname(sys.executable)):
        # Without shutil: importing it takes as long as reading the config.
        path = os.path.join(folder, command)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    message = f"command {command!r} was not found on PATH; install it or give its full path"
    raise ServerError(definition.key, Phase.STARTUP, message + _hint(command))


def explain_start_failure(definition: ServerDefinition, error: OSError) -> str:
    """Explain why the system did not start a program; its error does not say what is missing."""
    cwd, command = definition.cwd, definition.command
    if cwd is not None and not os.path.isdir(cwd):
        full = "" if os.path.isabs(cwd) or cwd.startswith("~") else f" ({os.path.abspath(cwd)})"
        what = "is not a folder" if os.path.exists(cwd) else "is missing"
        return f"its cwd {cwd!r}{full} {what}{_hint(cwd, is_command=False)}"
    return f"could not start {command!r}: {error.strerror or error}{_hint(command)}"


def _hint(given: str, *, is_command: bool = True) -> str:
    """Hint at a usual mistake in a path."""
    if given.startswith("~"):
        return "; '~' is not expanded here: write $HOME"
    if is_command and len(given.split()) > 1 and not os.path.exists(given):
        return "; it is the program alone: its arguments belong into args"
    return ""
