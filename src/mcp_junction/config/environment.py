"""The environment's variables: which are common to all programs, and which are Junction's own.

Whoever registers a server may name variables that Junction has (``${VAR}``); its own are not among
them. Nothing here reads or changes the environment of the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_COMMON = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    "APPDATA", "LOCALAPPDATA", "USERNAME", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "SYSTEMROOT",
    "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "TEMP", "TMP", "PROGRAMFILES", "PROGRAMDATA",
    "PROCESSOR_ARCHITECTURE",
})  # fmt: skip
_OWN = re.compile(
    r"(MCP_)?JUNCTION_.*|MCP_CREDENTIAL_KEY|PG(PASSWORD|PASSFILE|SERVICEFILE|SSLKEY|SSLPASSWORD)",
    re.IGNORECASE,
)
_SECRET = re.compile(
    "pass|pwd|token|secret|key|credential|auth|cookie|bearer|mnemonic|dsn|(?:^|_)pat$",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"://[^/?#\s]*:[^/?#\s]*@")


def is_common_variable(name: str) -> bool:
    """Whether every process has this variable: it is passed on to servers, and is no secret."""
    return name.upper() in _COMMON or name.startswith("LC_")


def is_secret_variable(name: str, value: str) -> bool:
    """Whether a variable may hold a secret, by its name or by a password in a url."""
    return _SECRET.search(name) is not None or _PASSWORD.search(value) is not None


def is_own_variable(name: str) -> bool:
    """Whether a variable is Junction's own; case does not matter, since some systems ignore it."""
    return _OWN.fullmatch(name) is not None


def without_own(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a registered server may be given."""
    return {name: value for name, value in variables.items() if not is_own_variable(name)}
