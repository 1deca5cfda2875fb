"""The environment's variables: which of them are Junction's own, and hold what is nobody else's.

Whoever registers a server may name variables that Junction has (``${VAR}``); these are not among
them. Nothing here reads or changes the environment of the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_OWN = re.compile(
    r"(MCP_)?JUNCTION_.*|MCP_CREDENTIAL_KEY|PG(PASSWORD|PASSFILE|SERVICEFILE|SSLKEY|SSLPASSWORD)",
    re.IGNORECASE,
)


def is_own_variable(name: str) -> bool:
    """Whether a variable is Junction's own; case does not matter, since some systems ignore it."""
    return _OWN.fullmatch(name) is not None


def without_own(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a registered server may be given."""
    return {name: value for name, value in variables.items() if not is_own_variable(name)}
