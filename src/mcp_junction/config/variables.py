"""Environment variables: which are secret or our own, and their expansion in config strings.

``$VAR``, ``${VAR}``, ``${VAR:-default}``, ``${env:VAR}``; ``$$`` is a dollar sign.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping

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
    """Whether every process has this variable: it is passed to servers, and is not secret."""
    return name.upper() in _COMMON or name.startswith("LC_")


def is_secret_variable(name: str, value: str) -> bool:
    """Whether a variable may hold a secret, by its name or by a password in a url."""
    return _SECRET.search(name) is not None or _PASSWORD.search(value) is not None


def is_own_variable(name: str) -> bool:
    """Whether a variable is Junction's own; case does not matter, since some systems ignore it."""
    return _OWN.fullmatch(name) is not None


def without_own(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without Junction's own, for a registered server."""
    return {name: value for name, value in variables.items() if not is_own_variable(name)}


log = logging.getLogger("mcp_junction.config")

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^}]*)\}|(?P<plain>[A-Z_][A-Z0-9_]*))")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*?)\s*\Z")
_QUOTED = re.compile(r"""(["'])(.*?)\1(?:\s+#.*)?""")


def expand(
    text: str, variables: Mapping[str, str], used: dict[str, str] | None = None
) -> tuple[str, list[str]]:
    """Expand variables in a text; return it, and the names of the variables that are not set.

    The variables that were expanded are added to ``used``.
    """
    missing: list[str] = []

    def value(reference: re.Match[str]) -> str:
        if reference["dollar"]:
            return "$"
        name, default = _parse_reference(reference)
        found = variables.get(name)
        if default is not None:
            found = found or default
        if found is None:
            missing.append(name)
            return reference[0]
        if used is not None:
            used[name] = found
        return found

    return _REFERENCE.sub(value, text), missing


def find_references(text: str) -> list[str]:
    """Return the names of the variables that a text refers to."""
    found = (one for one in _REFERENCE.finditer(text) if one[0] != "$$")
    return [_parse_reference(reference)[0] for reference in found]


def without_references(text: str, names: Collection[str] | None = None) -> str:
    """Remove references to variables, or only those to ``names``; their defaults stay."""

    def rest(reference: re.Match[str]) -> str:
        name, default = _parse_reference(reference)
        if reference[0] == "$$" or (names is not None and name not in names):
            return reference[0]
        return default or ""

    return _REFERENCE.sub(rest, text)


def describe_missing(name: str) -> str:
    """Describe why a reference that ``expand`` returned as missing is not set."""
    if not name:
        return "${} names no environment variable; a dollar sign itself is written $$"
    if name.startswith("input:"):
        return f"${{{name}}} is asked from a person by VS Code; write ${{VAR}} and set VAR instead"
    return f"the environment variable {name} is not set"


def _parse_reference(reference: re.Match[str]) -> tuple[str, str | None]:
    """Return the variable that a reference names, and its default if it has one."""
    inside = reference["braced"] or reference["plain"] or ""
    name, has_default, default = inside.partition(":-")
    return name.removeprefix("env:"), default if has_default else None


def read_dotenv(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the assignments of a ``.env`` file; a missing file has none."""
    try:
        # Bytes that are not UTF-8 are kept as os.environ keeps them.
        with open(path, "rb") as file:
            lines = file.read().decode("utf-8-sig", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except OSError as error:
        log.warning("%s is left out: %s", path, error.strerror)
        return {}
    found: dict[str, str] = {}
    for line in lines:
        assignment = _ASSIGNMENT.match(line)
        if assignment and not line.lstrip().startswith("#"):
            found[assignment["name"]] = _unquote(assignment["value"])
    return found


def _unquote(value: str) -> str:
    """Remove the quotes of a value, and the comment after it."""
    quoted = _QUOTED.fullmatch(value)
    return quoted[2] if quoted else re.split(r"\s+#", value, maxsplit=1)[0]


def variable_fault(name: str, _: str) -> str | None:
    """Return why a program cannot be given a variable of this name."""
    return "is not a usable name" if not name or "=" in name or "\0" in name else None
